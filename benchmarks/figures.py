"""Draws docs/figures/*.svg from the records of benchmarks/benchmark.py. Needs matplotlib (`pip install -r requirements-dev.txt`).

    python benchmarks/figures.py            draw them
    python benchmarks/figures.py --check    exit with 1 if one of them is not what would be drawn, and change nothing

    time.svg     time against N, of ours, of what a user could pick instead, and of what no kernel goes below
    error.svg    error against N
    where.svg    where the time of one product at N = 4096 goes

The background is transparent and every colour a middle tone, to be read on light pages and on dark ones. A figure carries a digest of this
file and of the numbers that are in it. That is what --check compares, because another matplotlib draws the same figure in other bytes.
"""

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # tables.py lies there

import tables  # noqa: E402

FOLDER = tables.ROOT / "docs" / "figures"
INK = "#7d8793"  # text and axes; contrast 3.7 to 1 on white, 5 to 1 on GitHub's dark pages
STYLE = {
    "font.size": 10,
    "svg.hashsalt": "tril_matmul",  # else names of clip paths are random
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SIDES = {  # of a row of peers.json -> its name here, colour and width
    "reference": ("tril(matmul)", "#d65a5a", 1.8),
    "strmm": ("cuBLAS TRMM", "#9a70d6", 1.8),
    "triton": ("Triton, tf32x3", "#2f9e74", 1.8),
    "tf32": ("TF32 (not float32)", "#d8802b", 1.8),
    "ours": ("ours", "#2f81f7", 3.0),
}
LIMITS = {  # of a row of limits.json
    "float16_product_uniform": "limit: tensor cores",
    "copy": "limit: memory",
}
MULTIPLIES, MOVES, OTHER = "#2f81f7", "#2f9e74", "#d8802b"  # what a part of a product does, whoever does it
PART_COLOURS = {"hopper_product": MULTIPLIES, "cuBLAS, as many float16 products": MULTIPLIES, "pack_blocks": MOVES, "copy": MOVES, "": INK}
MARKED = 4096  # the size at which time.svg says the ratio


# ---- What is drawn: numbers and words, and nothing of how. -----------------------------------------------------------


def curves(rows, value, sides, x="N"):
    """{side: ([N], [value])} of those that are in the rows."""
    found = {side: [(row[x], value(row[side])) for row in rows if side in row] for side in sides}
    return {side: [list(each) for each in zip(*points, strict=True)] for side, points in found.items() if points}


def float32(record):
    return [row for row in record["rows"] if row["dtype"] == "float32"]


def time_numbers(records):
    measured = curves(float32(records["peers"]), lambda side: side["median_us"], SIDES)
    return {"sides": measured, "limits": curves(records["limits"]["rows"], lambda part: part["median_us"], LIMITS)}


def error_numbers(records):
    return {"sides": curves(float32(records["peers"]), lambda side: side["norm_error"], SIDES), "limits": {}}


def where_numbers(records):
    """Bars of (part, microseconds): what ncu saw, the call as a whole, and what its parts take as cuBLAS and a copy do them."""
    limits = records["limits"]["rows"]
    row = next((row for row in limits if row["N"] == 4096), limits[-1])
    parts = [
        ("copy", row["copy"]["median_us"]),
        ("cuBLAS, as many float16 products", row["float16_product_uniform"]["median_us"]),
    ]
    kernels = [(kernel["kernel"], kernel["duration"][0] / 1e3) for kernel in records["profile"]["rows"]]  # ncu counts nanoseconds
    bars = {"its kernels, each alone": kernels, "a call: they overlap": [("", row["ours"]["median_us"])], "its limits": parts}
    return {"N": row["N"], "bars": bars}


# ---- Drawing. --------------------------------------------------------------------------------------------------------


def spread(places, least):
    """Places in ascending order, moved apart until neighbours are `least` apart, as little as that takes."""
    placed = sorted(places)
    for _ in range(200):
        for n in range(len(placed) - 1):
            if (lacking := least - (placed[n + 1] - placed[n])) > 1e-9:
                placed[n] -= lacking / 2
                placed[n + 1] += lacking / 2
    return placed


def draw_curves(axes, numbers, label):
    from math import log10

    ends = []
    for side, (N, values) in numbers["sides"].items():
        name, colour, width = SIDES[side]
        axes.loglog(N, values, color=colour, linewidth=width, marker="o", markersize=4, zorder=2 + width)
        ends.append((log10(values[-1]), name, colour, "bold" if side == "ours" else "normal"))
    for (part, (N, values)), dashes in zip(numbers["limits"].items(), ((5, 2), (1, 2)), strict=False):
        axes.loglog(N, values, color=INK, linewidth=1.4, dashes=dashes)
        axes.annotate(LIMITS[part], (N[-1], values[-1]), (6, -2), textcoords="offset points", va="center")
    ends.sort()
    low, high = (log10(limit) for limit in axes.get_ylim())
    sizes = sorted({N for each in numbers["sides"].values() for N in each[0]})
    for place, (_, name, colour, weight) in zip(spread([end[0] for end in ends], (high - low) / 18), ends, strict=True):
        axes.text(sizes[-1] * 1.12, 10**place, name, color=colour, weight=weight, va="center")
    axes.set_xlim(sizes[0] * 0.9, sizes[-1] * 1.08)
    axes.set_xticks(sizes, [str(N) for N in sizes])
    axes.minorticks_off()
    axes.set_xlabel("N")
    axes.set_title(label, loc="left", fontsize=10, color=INK)
    axes.grid(color=INK, alpha=0.22, linewidth=0.6)


def draw_time(axes, numbers):
    draw_curves(axes, numbers, "C = tril(A) tril(B), float32: µs, lower is better")
    at = [dict(zip(*numbers["sides"].get(side, ((), ())), strict=True)).get(MARKED) for side in ("ours", "reference")]
    if all(at):
        axes.annotate("", (MARKED, at[1]), (MARKED, at[0]), arrowprops={"arrowstyle": "<->", "color": INK, "shrinkA": 4, "shrinkB": 4})
        places = {"xytext": (-5, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
        axes.annotate(f"{at[1] / at[0]:.1f}x", (MARKED, at[0] ** 0.55 * at[1] ** 0.45), weight="bold", **places)


def draw_error(axes, numbers):
    draw_curves(axes, numbers, "Error against float64, |C − exact| / |exact| (Frobenius), float32")


def draw_where(axes, numbers):
    bars = numbers["bars"]
    longest = max(sum(us for _, us in parts) for parts in bars.values())
    for place, parts in enumerate(bars.values()):
        left, beside = 0.0, []
        for part, us in parts:
            axes.barh(place, us, left=left, height=0.62, color=PART_COLOURS.get(part, OTHER), edgecolor=INK, linewidth=0.3)
            if us > longest * 0.15:
                axes.text(left + us / 2, place, f"{part}\n{us:.0f} µs".strip(), ha="center", va="center", color="#0d1117", fontsize=9)
            else:
                beside.append(f"{part} {us:.1f} µs")
            left += us
        axes.text(left + longest * 0.01, place, "\n".join(beside), va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), bars)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.2)
    title = f"Where the time of a product goes: N = {numbers['N']}, float32, µs. "
    axes.set_title(title + "Blue multiplies, green moves memory, orange the rest", loc="left", fontsize=10, color=INK)


FIGURES = {  # name -> records, their numbers, how they are drawn, inches
    "time": (("peers", "limits"), time_numbers, draw_time, (8.4, 4.6)),
    "error": (("peers",), error_numbers, draw_error, (8.4, 3.6)),
    "where": (("profile", "limits"), where_numbers, draw_where, (8.4, 2.6)),
}


def content_of(name, results):
    """Numbers, what stands below them, and the digest of it all and of this file. Raises tables.TableError."""
    suites, numbers_of, _, _ = FIGURES[name]
    records = {suite: tables.read_record(results, f"{suite}.json") for suite in suites}
    numbers = numbers_of(records)
    below = "; ".join(
        dict.fromkeys(f"{r['device']}, torch {r['versions']['torch']}, {r['date']}, commit {r['commit'][:8]}" for r in records.values())
    )
    text = json.dumps([numbers, below]) + Path(__file__).read_text(encoding="utf-8")
    return numbers, below, hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(name, results, file, **options):
    """One figure into a file (or file object); options of matplotlib's savefig."""
    import matplotlib
    from matplotlib.figure import Figure

    numbers, below, digest = content_of(name, results)
    _, _, drawn, inches = FIGURES[name]
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure = Figure(figsize=inches)
        drawn(figure.subplots(), numbers)
        figure.text(0.01, -0.02, below, fontsize=7, va="top")
        kept = {"Date": None, "Creator": None, "Description": f"benchmarks/figures.py, from {digest}"}
        options = {"format": "svg", "metadata": kept, "transparent": True, **options}
        figure.savefig(file, bbox_inches="tight", **options)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Draw docs/figures/*.svg from the records of benchmarks/benchmark.py.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a figure is not up to date")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR", help="where the records lie")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR", help="where the figures go")
    given = parser.parse_args(arguments)
    if not given.check:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            parser.error("drawing needs matplotlib, which is not installed (pip install -r requirements-dev.txt)")
        given.out.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name in FIGURES:
        path = given.out / f"{name}.svg"
        try:
            digest = content_of(name, given.results)[2]
        except tables.TableError as problem:
            print(f"{path}: {problem}", file=sys.stderr)
            wrong += 1
            continue
        found = re.search(r"benchmarks/figures\.py, from (\w+)", path.read_text(encoding="utf-8")) if path.exists() else None
        if found and found.group(1) == digest:
            print(f"{path}: up to date")
        elif given.check:
            print(f"{path}: {'not up to date' if path.exists() else 'missing'}; run: python benchmarks/figures.py", file=sys.stderr)
            wrong += 1
        else:
            draw(name, given.results, path)
            print(f"{path}: written")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
