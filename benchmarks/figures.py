"""Draws docs/figures/*.svg from the records of benchmarks/benchmark.py. Drawing needs matplotlib (`pip install -r requirements-dev.txt`).

    python benchmarks/figures.py            draws the figures that are not up to date
    python benchmarks/figures.py --check    exits with 1 if a figure is not up to date, and changes nothing

    figure         what it shows
    time.svg       times against N: ours, what a user could pick instead, and a copy and cuBLAS's float16 product as limits
    error.svg      errors against N: ours, and what a user could pick instead
    where.svg      the parts of the time of one product at N = 4096
    pipeline.svg   how the stages of a CTA of the fp16x3 kernel are filled and read, by a model of copies and products
    order.svg      the order in which the tiles of C are computed

The last two figures need no record. The background is transparent, and every colour on it is a middle tone, so that figures are readable
on light and on dark pages. Each figure carries a digest of this file and of the figure's records. --check compares this digest and not the
figure itself, because another version of matplotlib writes other bytes for the same figure.
"""

import functools
import hashlib
import json
import sys
from itertools import accumulate
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # tables.py lies there

import tables  # noqa: E402

FOLDER = tables.ROOT / "docs" / "figures"
INK = "#7d8793"  # for text and axes; the contrast is 3.6 to 1 on white, and 5 to 1 on GitHub's dark pages
STYLE = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
STYLE |= {"font.size": 10, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False}
STYLE |= {"svg.hashsalt": "tril_matmul"}  # without a salt, the identifiers in the SVG differ from run to run
MARKED = {"linewidth": 1.8, "marker": "o", "markersize": 4, "zorder": 3.8}
SIDES = {  # maps a key in a row of peers.json to the style of its curve; at large N the slowest comes first
    "reference": {"label": "tril(matmul)", "color": "#d65a5a", **MARKED},
    "strmm": {"label": "cuBLAS TRMM", "color": "#9a70d6", **MARKED},
    "triton": {"label": "Triton, tf32x3", "color": "#2f9e74", **MARKED},
    "tf32": {"label": "TF32 (not float32)", "color": "#d8802b", **MARKED},
    "ours": {"label": "ours", "color": "#2f81f7", **MARKED, "linewidth": 3.0, "zorder": 5.0},
}
LIMITS = {  # maps a key in a row of limits.json to the style of its curve
    "float16_product_uniform": {"label": "limit: tensor cores", "color": INK, "linewidth": 1.4, "dashes": (5, 2)},
    "copy": {"label": "limit: memory", "color": INK, "linewidth": 1.4, "dashes": (1, 2)},
}
MULTIPLIES, MOVES, OTHER = "#2f81f7", "#2f9e74", "#d8802b"  # the colours of a product's parts, by what each part does
PART_COLOURS = dict.fromkeys(("tile_product", "cuBLAS, as many float16 products"), MULTIPLIES)
PART_COLOURS |= {"pack_blocks": MOVES, "copy": MOVES, "": INK}


def draw_curves(axes, value, peers, limits=()):
    peers = [row for row in peers if row["dtype"] == "float32"]
    for rows, styles in ((peers, SIDES), (limits, LIMITS if limits else {})):
        for side, style in styles.items():
            measured = [row for row in rows if side in row]
            axes.loglog([row["N"] for row in measured], [row[side][value] for row in measured], **style)
    sizes = [row["N"] for row in peers]
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, labelcolor="linecolor")
    axes.set(xlim=(sizes[0] * 0.9, sizes[-1] * 1.08), xlabel="N")
    axes.set_xticks(sizes, [str(N) for N in sizes])
    axes.minorticks_off()
    axes.grid(color=INK, alpha=0.22, linewidth=0.6)


def draw_time(axes, peers, limits):
    draw_curves(axes, "median_us", [row for row in peers["rows"] if row.quiet], limits["rows"])
    axes.set_title("C = tril(A) tril(B), float32: µs, lower is better")
    for row in peers["rows"]:
        if row["N"] == 4096 and row["dtype"] == "float32":  # an arrow at this size shows the ratio
            ours, reference = row["ours"]["median_us"], row["reference"]["median_us"]
            axes.annotate("", (4096, reference), (4096, ours), arrowprops={"arrowstyle": "<->", "color": INK, "shrinkA": 4, "shrinkB": 4})
            place = {"xytext": (-5, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
            axes.annotate(f"{reference / ours:.1f}x", (4096, ours**0.55 * reference**0.45), weight="bold", **place)


def draw_error(axes, peers):
    draw_curves(axes, "norm_error", peers["rows"])  # unlike in draw_time, rows whose times were disturbed are drawn, too
    axes.set_title("Error against float64, |C − exact| / |exact| (Frobenius), float32")


def draw_where(axes, profile, limits):
    """Draws three bars. The first has the time of each kernel by itself, as ncu measured it. The second has the time of a whole call. The
    third has the limits of a call: the times of a copy and of cuBLAS's float16 product."""
    row = next((row for row in limits["rows"] if row["N"] == 4096), limits["rows"][-1])
    parts = {"copy": row["copy"], "cuBLAS, as many float16 products": row["float16_product_uniform"]}
    bars = {
        "its kernels, each alone": [(kernel["kernel"], kernel["duration"][0] / 1e3) for kernel in profile["rows"]],  # ncu gives nanoseconds
        "a call: they overlap": [("", row["ours"]["median_us"])],
        "its limits": [(part, side["median_us"]) for part, side in parts.items()],
    }
    longest = max(sum(us for _, us in parts) for parts in bars.values())
    for place, parts in enumerate(bars.values()):
        ends, wide = [0, *accumulate(us for _, us in parts)], [us > longest * 0.15 for _, us in parts]
        colours = [PART_COLOURS.get(part, OTHER) for part, _ in parts]
        drawn = axes.barh([place] * len(parts), [us for _, us in parts], 0.62, ends[:-1], color=colours, edgecolor=INK, linewidth=0.3)
        labels = [f"{part}\n{us:.0f} µs".strip() * inside for (part, us), inside in zip(parts, wide, strict=True)]
        axes.bar_label(drawn, labels, label_type="center", color="#0d1117", fontsize=9)
        beside = [f"{part} {us:.1f} µs" for (part, us), inside in zip(parts, wide, strict=True) if not inside]
        axes.text(ends[-1] + longest * 0.01, place, "\n".join(beside), va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), bars)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.2)
    axes.set_title(f"Where the time of a product goes: N = {row['N']}, float32, µs. Blue multiplies, green moves memory, orange the rest")


# ---- Figures of docs/kernel.md, which need no record. ----------------------------------------------------------------

STAGES = 7  # the number of stages in shared memory; a k-block takes three of them
# LANDS is the number of cycles from the request for a copy until its first bytes arrive. In TAKEN_IN cycles an SM receives the 32 KB of a
# stage.
LANDS, TAKEN_IN = 700, 512
# A consumer is a warpgroup, and has 64 rows of X. It multiplies them by the first 128 columns of a k-block's Y, and then by the other 128.
# Each half takes 12 wgmma instructions: three float16 products, each in four steps of 16 k. The tensor cores need MULTIPLIED cycles for a
# half. The consumer then needs PROMOTED cycles to add the sums to its float32 totals.
MULTIPLIED, PROMOTED = 768, 250
FILLS = ("#2f81f7", "#9a70d6", "#2f9e74", "#d8802b")  # the colours of four k-blocks


def model_pipeline(k_blocks):
    """Models how a CTA of the fp16x3 kernel copies and multiplies the first k-blocks. Returns two lists of tuples, with times in cycles.

    The first list has (stage, k-block, part, asked, full, released), and the second has (consumer, k-block, half, begun, multiplied,
    promoted). A k-block has three parts, in this order: the first half of Y's columns, X, and the second half of Y's columns. The producer
    asks for each part as soon as its stage is free. Two consumers take turns at the tensor cores. Each consumer multiplies X by the first
    half of Y's columns, and then by the second half.
    """
    released, stages, consumers = [0] * STAGES, [], []
    port = tensor_cores = 0
    ready = [0, 0]  # when each consumer has promoted its sums
    for k_block in range(k_blocks):
        asked, full = [], []
        for part in range(3):
            asked.append(released[(3 * k_block + part) % STAGES])
            port = max(port, asked[-1] + LANDS) + TAKEN_IN
            full.append(port)
        for half in range(2):
            for consumer in range(2):
                begun = max(ready[consumer], tensor_cores, full[1], full[2 * half])
                tensor_cores = begun + MULTIPLIED
                ready[consumer] = tensor_cores + PROMOTED
                consumers.append((consumer, k_block, half, begun, tensor_cores, ready[consumer]))
            for part in (0,) if half == 0 else (1, 2):
                stage = (3 * k_block + part) % STAGES
                released[stage] = tensor_cores
                stages.append((stage, k_block, part, asked[part], full[part], tensor_cores))
    return stages, consumers


def draw_pipeline(axes):
    """Draws when each stage is filled and read, and when each consumer multiplies and promotes."""
    stages, consumers = model_pipeline(4)
    label = {"ha": "center", "va": "center", "fontsize": 6.5, "color": "#0d1117"}
    names = ("Ya", "X", "Yb")
    for stage, k_block, part, asked, full, released in stages:
        axes.barh(stage, full - asked, 0.7, asked, color="none", edgecolor=FILLS[k_block], linewidth=0.8, hatch="////")
        axes.barh(stage, released - full, 0.7, full, color=FILLS[k_block])
        axes.text((full + released) / 2, stage, f"{names[part]}{k_block}", **label)
    for consumer, k_block, half, begun, multiplied, promoted in consumers:
        lane = STAGES + 0.5 + consumer
        axes.barh(lane, multiplied - begun, 0.7, begun, color=FILLS[k_block])
        axes.text((begun + multiplied) / 2, lane, f"X{k_block} Y{'ab'[half]}{k_block}", **label)
        axes.barh(lane, promoted - multiplied, 0.7, multiplied, color=INK)
    axes.set_yticks([*range(STAGES), STAGES + 0.5, STAGES + 1.5])
    axes.set_yticklabels([*(f"stage {stage}" for stage in range(STAGES)), "warpgroup 0", "warpgroup 1"])
    axes.invert_yaxis()
    axes.set_xlim(0, max(promoted for *_, promoted in consumers))
    axes.set_xlabel("cycles, by a model: hatched while a copy is on its way, grey while sums are promoted")
    axes.set_title("Four k-blocks, one colour each, in seven stages: a, b are the halves of Y's columns")


def place_of_tile(contraction, row, col, rows):
    """Returns the position of a tile of a lower triangular C in the order of model_new.py's `TileOrder`, counted from 0. The tiles with the
    longest ranges of k come first."""
    group, place = {"NN": (rows - 1 - row + col, col), "NT": (rows - 1 - col, row - col), "TN": (row, col)}[contraction]
    return group * (group + 1) // 2 + place


def length_of_tile(contraction, row, col, rows):
    """Returns the length of a tile's range of k, in units of a tile's edge."""
    return {"NN": row - col + 1, "NT": col + 1, "TN": rows - row}[contraction]


def draw_order(axes, rows=8):
    """Draws three triangles of tiles. The tiles are numbered in the order in which CTAs take them. Tiles with longer ranges of k have a
    stronger colour."""
    names = {"NN": "C = A B: by diagonals", "NT": "dA = G Bᵀ: by columns", "TN": "dB = Aᵀ G: by rows"}
    for panel, (contraction, name) in enumerate(names.items()):
        left = panel * (rows + 2)
        for row in range(rows):
            for col in range(row + 1):
                length = length_of_tile(contraction, row, col, rows)
                axes.barh(row, 0.94, 0.94, left + col - 0.47, color="#2f81f7", alpha=0.15 + 0.85 * length / rows)
                number = place_of_tile(contraction, row, col, rows) + 1
                axes.text(left + col, row, number, ha="center", va="center", fontsize=8, color=INK if length < 3 else "#0d1117")
        axes.text(left - 0.5, -0.9, name, fontsize=10)
    axes.set(xlim=(-0.6, 3 * rows + 3.6), ylim=(rows - 0.4, -1.6), aspect="equal")
    axes.set_axis_off()


FIGURES = {  # maps a name to (records, the function that draws the figure, the size in inches)
    "time": (("peers", "limits"), draw_time, (8.4, 4.6)),
    "error": (("peers",), draw_error, (8.4, 3.6)),
    "where": (("profile", "limits"), draw_where, (8.4, 2.6)),
    "pipeline": ((), draw_pipeline, (8.4, 3.4)),
    "order": ((), draw_order, (8.4, 3.0)),
}


def content_of(name, results):
    """Returns a figure's records, and the digest of these records and of this file. Raises tables.TableError if there is no such figure, or
    if a record is missing or incomplete."""
    if name not in FIGURES:
        raise tables.TableError(f"there is no figure '{name}'; accepted: {', '.join(FIGURES)}")
    records = [tables.read_record(results, suite) for suite in FIGURES[name][0]]
    text = json.dumps(records) + Path(__file__).read_text(encoding="utf-8")
    return records, hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(name, results, file):
    """Draws one figure as SVG into `file`, which is a path or a file object."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise tables.TableError(f"drawing needs matplotlib: {missing} (pip install -r requirements-dev.txt)") from None

    (records, digest), (_, drawn, inches) = content_of(name, results), FIGURES[name]
    told = (f"{r['device']}, torch {r['versions']['torch']}, {r['date']}, commit {r['commit'][:8]}" for r in records)
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure = Figure(figsize=inches)
        drawn(figure.subplots(), *records)
        figure.text(0.01, -0.02, "; ".join(dict.fromkeys(told)), fontsize=7, va="top")
        kept = {"Date": None, "Creator": None, "Description": f"benchmarks/figures.py, from {digest}"}
        figure.savefig(file, format="svg", metadata=kept, transparent=True, bbox_inches="tight")


def redrawn(path, results):
    """Returns a function that draws the figure at `path` anew, or None if this figure is up to date."""
    _, digest = content_of(path.stem, results)
    current = path.exists() and f"benchmarks/figures.py, from {digest}<" in path.read_text(encoding="utf-8")
    return None if current else lambda: draw(path.stem, results, path)


main = functools.partial(tables.bring_up_to_date, __doc__, "figures.py", [FOLDER / f"{name}.svg" for name in FIGURES], redrawn)

if __name__ == "__main__":
    sys.exit(main())
