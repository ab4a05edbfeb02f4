"""Writes the tables of README.md and docs/*.md that stand between markers, from the records in benchmarks/results.

    python benchmarks/tables.py            brings the documents up to date
    python benchmarks/tables.py --check    exits with 1 if a document is not up to date, and changes nothing

Each table stands between two marker lines, `<!-- begin: NAME -->` and `<!-- end: NAME -->`. The script replaces all text between them.

NAME is a key of TABLES or of SENTENCES. An entry of TABLES has one record and the columns of a table. An entry of SENTENCES has a function
that writes sentences, a table of several records, or numbers of model_new.py. NAME may also be FOLDER/KEY, where KEY is a key of TABLES.
This is the table KEY, but from the record in the subfolder FOLDER, which has the records of another GPU. It is an error if a record is
missing, was cut short, or lacks rows because their measurement failed. benchmark.py makes most records. soak.py and tests/sanitize.py make
one each, and wanted.json is written by hand.
"""

import argparse
import json
import math
import re
import sys
from collections import Counter
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class TableError(Exception):
    """Raised if a table or a figure cannot be made or, with --check, is not up to date. The message says why, or what to run."""


# ---- Rows ------------------------------------------------------------------------------------------------------------

# Most rows have sides, which are the calls that were timed in turns, such as `reference` and `ours`. A side counts as disturbed if its
# median is more than FAR times its 10th percentile. `undisturbed` in judge/measures.py uses the same factor. It is repeated here, because
# that file imports torch, which this script does not need.
FAR = 1.25


def microseconds(value):
    """Returns a time in microseconds as text, such as 9.2, 112 or 2,728. Measurements are not exact enough for more digits."""
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def ratio(value):
    if value is None:  # check.py certifies no ratio if other processes disturb the reference, or if a call is too short
        return "too noisy"
    return f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x"


def error(value):
    """Returns an error as text, such as 7.3e-7. Python would pad the exponent with a zero: 7.3e-07."""
    return re.sub(r"e([-+])0*(\d)", r"e\1\2", f"{value:.1e}").replace("e+", "e") if value else "0"


class Row(dict):
    """Represents a row of a record, or one side of a row. Most properties are texts that tables and sentences show. Every JSON object in a
    record is read as a Row, so that templates such as {ours.time} can use these properties."""

    # Properties of a side. The rows of the record `devices`, which have no sides, also use norm_error.
    median = property(lambda side: microseconds(side["median_us"]))
    time = property(lambda side: f"{side.median} ({microseconds(side['p10_us'])} to {microseconds(side['p90_us'])})")
    # `disturbed` is True if the times of a side vary so much that other processes must have been at work.
    disturbed = property(lambda side: side["median_us"] > FAR * side["p10_us"])
    time_if_disturbed = property(lambda side: side.time if side.disturbed else side.median)
    norm_error = property(lambda side: error(side["norm_error"]))
    errors = property(lambda side: f"{side.norm_error} / {error(side['worst_error'])}")
    # Properties of a row
    ratio = property(lambda row: ratio(row["ratio"]))
    quiet = property(lambda row: not row["reference"].disturbed and not row["ours"].disturbed)
    # `calm_ratio` is the ratio of the medians. If the reference or ours was disturbed, it is the smaller of this ratio and that of the 10th
    # percentiles. A 10th percentile is a time that nothing disturbed, so slow calls of the reference alone do not make ours look faster.
    calm_ratio = property(lambda row: row["ratio"] if row.quiet else min(row["ratio"], row["reference"]["p10_us"] / row["ours"]["p10_us"]))
    settings = property(lambda row: ", TF32 allowed" * row["options"]["tf32"] + f", {row['path']} kernel" * (row["path"] != "auto"))
    dims = property(lambda row: [int(side) for side in row["shape"].split(" x ")])
    size = property(lambda row: str(row.get("shape", row.get("N"))).replace(" x ", "×"))
    size_and_dtype = property(lambda row: row.size + (f", {row['dtype']}" if row["dtype"] != "float32" else ""))
    # Outliers are elements that are too small, beside the largest element of their block, for a scaled pair of float16.
    outliers = property(lambda row: f", {row['outliers']:,} outliers" if row.get("outliers") else "")
    path = property(lambda row: (row["path"] or "not said") + row.outliers)
    gradients = property(lambda row: ", forward and backward" if row.get("problem", "").endswith("dB") else "")
    breach = property(lambda row: "" if row["within_contract"] else " (not within the contract)")
    # `rate` is in TFLOP/s. It counts only the operations that the mathematics needs.
    rate = property(lambda row: f"{row['useful_flop'] / row['ours']['median_us'] / 1e6:.3g}")

    @property
    def label(self):
        """Returns a text that names the product: `what` (such as "L X") if the row has it, and the size. The dtype, the problem, the inputs
        and TF32 follow where they are not the default, and then "forward and backward" if the row includes gradients. Two products of one
        machine and one path have different texts, except in the record `infinite`, whose rows differ in `where`."""
        problem, inputs = self.get("problem", "lower").split(",")[0], self.get("inputs", "uniform")
        named = [self.get("what"), self.size_and_dtype, problem * (problem != "lower"), inputs * (inputs != "uniform")]
        return ", ".join(filter(None, [*named, "TF32 allowed" * (self.get("group") == "tf32")])) + self.gradients

    @property
    def quiet_ratio(self):
        """Returns {side: the reference's time divided by the side's time, as text}. The text is a dash if either side was disturbed."""
        sides, reference = {name: side for name, side in self.items() if isinstance(side, Row) and "median_us" in side}, self["reference"]
        ratios = {name: ratio(reference["median_us"] / side["median_us"]) for name, side in sides.items()}
        return {name: "–" if reference.disturbed or side.disturbed else ratios[name] for name, side in sides.items()}


# ---- Tables: each column has a head and a str.format template of its cells, such as {N}, {ours.time} or {row.size} -----


def markdown(head, rows):
    """Makes a Markdown table. The first column is aligned to the left, the other columns to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


OPTIONAL = ("tf32", "strmm", "blocked", "triton", "cublas", "copy", "all_reduce_ms")  # keys that not every row of a record has


def cell(template, row):
    try:
        return template.format(row=row, **row)
    except KeyError as missing:
        if missing.args[0] in OPTIONAL:
            return "–"
        raise


def columns(rows, templates, group=None):
    """Returns the table of all rows, or of the rows of `group` alone, or None if there are no such rows. `templates` maps the head of each
    column to the template of its cells."""
    rows = [row for row in rows if group is None or row["group"] == group]
    return markdown(templates, [[cell(template, row) for template in templates.values()] for row in rows]) if rows else None


def kernel_of(mangled):
    """Returns a kernel's name without its mangling. No kernel is in a namespace, so a mangled name begins with _Z, the length of the
    kernel's name, and the name itself."""
    return re.sub(r"_Z(\d+)(.*)", lambda found: found[2][: int(found[1])], mangled)


def registers(rows):
    """Returns a table of registers per thread, by architecture and kernel. A cell has the fewest and the most registers of the kernel's
    instances. Instances with at most 4 registers are empty on this architecture and do not count. If no instance counts, the cell is a
    dash."""
    kernels, table_rows = sorted({kernel_of(row["kernel"]) for row in rows}), []
    for architecture, (*instances,) in groupby(rows, itemgetter("architecture")):
        kernel_counts = [
            {row["registers"] for row in instances if kernel_of(row["kernel"]) == kernel and row["registers"] > 4} for kernel in kernels
        ]
        ranges = [" to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else "–" for counts in kernel_counts]
        table_rows.append([architecture, *ranges, sum(row["spilled_bytes"] for row in instances)])
    return markdown(["architecture", *kernels, "bytes spilled"], table_rows)


# Each entry maps a base unit of ncu to a divisor and the unit in the table.
SCALES = {"ns": (1e3, "µs"), "byte/s": (1e12, "TB/s"), "byte/second": (1e12, "TB/s"), "byte": (1e6, "MB")}


def profile(rows):
    def describe(value, unit):
        scale, unit = SCALES.get(unit, (1, unit))
        return f"{value / scale:.3g} {unit}"

    names = [name for name in rows[0] if name != "kernel"]
    table_rows = [[row["kernel"], *(describe(*row[name]) if name in row else "n/a" for name in names)] for row in rows]
    return markdown(["kernel", *(name.replace("_", " ") for name in names)], table_rows)


CYCLES = {"start": "start", "waits for packing": "previous_kernel", "first k-block": "first_stage", "main loop": "main_loop"}
CYCLES |= {"chains": "chains", "writes C": "epilogue", "next tile": "next_stage", "exit": "exit", "idle at the end": "idle_at_end"}


def cycles(rows):
    """Returns a table of the parts of the fp16x3 kernel's time, in thousands of cycles. Except for roundings, and for
    differences between the SMs' clocks, the parts add up to the whole kernel."""
    table_rows = []
    for row in rows:
        parts = [f"{row[part] / 1000:.1f}" for part in CYCLES.values()]
        whole = [f"{row['tiles']:.1f}", f"{row['kernel_cycles'] / 1000:,.1f}", f"{row['clock_ghz']:.2f}"]
        table_rows.append([f"{row['N']}, {row['inputs']}, {row['what']}", *whole, *parts])
    return markdown(["N, inputs", "tiles of a CTA", "kernel, 1000 cycles", "clock, GHz", *CYCLES], table_rows)


def sanitizers(rows):
    """Returns a table of what each tool of compute-sanitizer found in each kernel, and of the seconds that it took."""
    tools, kernels = (list(dict.fromkeys(row[key] for row in rows)) for key in ("tool", "kernel"))
    results = {(row["kernel"], row["tool"]): f"{row['result']}, {row['seconds']:.0f} s" for row in rows}
    return markdown(["tests/sanitize.py", *tools], [[kernel, *(results.get((kernel, tool), "–") for tool in tools)] for kernel in kernels])


# ---- Sentences -------------------------------------------------------------------------------------------------------


def factor(rows):
    """Returns sentences on where the speedup comes from, at N = 4096 or else at the last size of the record."""
    rows = [row for row in rows if row["dtype"] == "float32"]
    row = next((row for row in rows if row["N"] == 4096), rows[-1])
    dense, useful = 2 * row["N"] ** 3, row["useful_flop"]
    cublas = dense / row["reference"]["median_us"] / 1e6  # TFLOP/s
    return (
        f"At N = {row['N']} ours takes {row['ours'].median} µs and is {row.ratio} faster than `tril(matmul)`."
        f" The triangle gives {ratio(dense / useful)} of that: {useful / 1e9:.3g} GFLOP in place of {dense / 1e9:.4g}."
        f" Tensor cores give the other {ratio(row['ratio'] * useful / dense)}, although three float16 products stand for each float32 one:"
        f" {row.rate} TFLOP/s, where cuBLAS has {cublas:.3g} on CUDA cores."
    )


DTYPES = ("float32", "float16", "bfloat16", "float64")


def ratios_by_dtype(named_rows):
    """Returns [(name, ratios in the order of DTYPES)]. Rows of the same name differ only in their dtype. A row that was disturbed or not
    measured has a dash in place of its ratio. A name is left out if all its rows were disturbed."""
    ratios = {}
    for name, row in named_rows:
        if row.quiet:
            ratios.setdefault(name, {})[row["dtype"]] = row.ratio
    return [(name, [by_dtype.get(dtype, "–") for dtype in DTYPES]) for name, by_dtype in ratios.items()]


def sizes_shown(rows):
    """Returns rows of products with default settings and any dtype. These are the rows with N = 1024 or 4096. If there are none, they are
    the rows with the largest N."""
    rows = [row for row in rows if row.label == row.size_and_dtype]
    shown = {1024, 4096} & {row["N"] for row in rows} or {max((row["N"] for row in rows), default=0)}
    return [row for row in rows if row["N"] in shown]


def by_type(forward, backward, batch, family, h100, forced):
    """Returns a table of ratios with one row per dtype. Its columns are two sizes, gradients, two batches, the largest square products of
    the suite `family` except L U, one size on an H100, and one size by the mma kernel, which serves most other GPUs. A product that was
    measured in float32 alone gets no column."""
    square = [row for row in family if len({*row.dims}) == 1 and len(row.dims) == 2 and row["what"] != "L U"]
    square = [row for row in square if row.dims == max(other.dims for other in square)]
    batches = list(dict.fromkeys(row["shape"] for row in batch))[:2]
    chosen = [*sizes_shown(forward), *backward, *(row for row in batch if row["shape"] in batches), *square]
    named = [(Row(row, dtype="float32").label, row) for row in chosen]
    for elsewhere, rows in (("on an H100", h100), ("by the mma kernel", forced)):
        named += [(f"{row['N']}, {elsewhere}", row) for row in sizes_shown(rows) if row["N"] != 1024]
    several = {name for name, row in named if row["dtype"] != "float32"}
    names, ratios = zip(*ratios_by_dtype([(name, row) for name, row in named if name in several]), strict=True)
    rows = [[dtype, *of_dtype] for dtype, of_dtype in zip(DTYPES, zip(*ratios, strict=True), strict=True)]
    return markdown(["times as fast as torch", *names], rows)


def short_calls(checks, backward, host):
    """Returns two sentences. The first has the lowest ratio for gradients that check.py found without a forced kernel, and the ratio of the
    GPU times of the same product. The second has the host's times per call."""
    judged = min((row for row in checks if row["path"] == "auto"), key=lambda row: row["timings"]["gradients"]["ratio"] or math.inf)
    size = judged["dims"].partition("x")[0]  # check.py writes dims such as 4096 or 8192x2048x4096
    label = ", ".join([size, *([judged["dtype"]] * (judged["dtype"] != "float32")), "forward and backward"])
    timed = next((row.ratio for row in backward if row.label == label), "–")
    starts = ", ".join(f"{row['tril_matmul'].median} µs ({row['mode']})" for row in host)
    return (
        f"for {label}, check.py says {judged['timings']['gradients'].ratio}, and the table of [forward and backward](#forward-and-backward)"
        f" {timed}.\nA call costs the host {starts}."
    )


def seconds(builds, checks):
    """Returns sentences on the seconds that an import and a run of check.py take."""
    cold, warm = (next(row for row in builds if row["state"] == state) for state in ("cold", "warm"))
    cores = f" on {cold['cores']} cores" if "cores" in cold else ""
    return (
        f"On a GPU the first import compiles the kernels, once: {cold['import_s']:.0f} s{cores}. Later imports take"
        f" {warm['import_s']:.1f} s beyond torch's own {warm['torch_s']:.0f} s. `python check.py` then takes {checks[0]['seconds']:.0f} s."
    )


def proof(rows):
    """Returns the verdict of the first run of check.py, word for word, with a line break after each semicolon."""
    return "\n".join(["```", *rows[0]["sentence"].replace("; ", ";\n").split("\n"), "```"])


def slower_rows(*records):
    """Returns [(machine, row)] for all products that are slower than the reference, by calm_ratio. The last of `records` is that of a CPU.
    A product that two suites measure is listed once."""
    row_of_product = {}
    for machine, rows in (("GPU", chain(*records[:-1])), ("CPU", records[-1])):
        row_of_product |= {(machine, row.label): row for row in rows if row.calm_ratio < 1}
    return [(machine, row) for (machine, _), row in row_of_product.items()]


def slower_table(rows):
    lines = [[machine, row.label, row["reference"].median, row["ours"].median, ratio(row.calm_ratio)] for machine, row in rows]
    return markdown(["machine", "product (float32, if nothing is said)", "reference, µs", "ours, µs", "ratio"], lines or [["–"] * 5])


def slower(*records):
    """Returns a table of all products that are slower than the reference."""
    return slower_table(slower_rows(*records))


def slowest(*records):
    """Returns a table of products with a ratio below 0.95. On a GPU it has the slowest product of each problem. On a CPU it has only the
    slowest forward product of the suite `cpu`, without batches and with N of 64 or more."""
    worst = {}
    for machine, row in slower_rows(*records):
        counts = machine == "GPU" or (row.label.isdigit() and int(row.label) >= 64)
        key = machine, row.get("what", row.get("problem")) if machine == "GPU" else ""
        if counts and row.calm_ratio < 0.95 and (key not in worst or row.calm_ratio < worst[key].calm_ratio):
            worst[key] = row
    return slower_table([(machine, row) for (machine, _), row in worst.items()])


def wanted(goals, *records):
    """Returns a table of wanted and measured ratios. `goals` has the rows of wanted.json. If a measured ratio is below the wanted one,
    the table has the reason that wanted.json gives. The last two of `records` are those of a CPU and of the mma kernel."""
    *records, cpu, forced = records
    rows = {row.label: row for row in chain(*records) if row.quiet}
    # In these rows L, X and L X have the same size. A copy of X reads and writes this size once. The product reads X and half of L, and
    # writes L X, which is 5/4 of the copy's bytes.
    for suffix, side, moved in ((", beside cuBLAS", "cublas", 1), (", of a copy's rate", "copy", 5 / 4)):
        rows |= {label + suffix: Row(ratio=moved * r[side]["median_us"] / r["ours"]["median_us"]) for label, r in rows.items() if side in r}
    rows |= {f"{row.label}, {how}": row for how, suite in (("on a CPU", cpu), ("mma kernel forced", forced)) for row in suite if row.quiet}
    table_rows, missing = [], Row(ratio=0.0)
    for goal in goals:
        row = rows.get(goal["product"], missing)
        met = "no record that nothing disturbed" if row is missing else "met" if row["ratio"] >= goal["ratio"] else goal["why"]
        table_rows.append([goal["product"], goal.ratio, "–" if row is missing else row.ratio, met])
    return markdown(["product (float32, if nothing is said)", "wanted", "measured", "met, or what it takes its time for"], table_rows)


def parts():
    """Returns a table of the number of lines in each part of model_new.py: the docstring, and what follows each heading."""
    lines = (ROOT / "model_new.py").read_text(encoding="utf-8").splitlines()
    heads = {0: "Docstring"} | {number: head[1] for number, line in enumerate(lines) if (head := re.match(r"# -{4} (.*?)[:.] .*-$", line))}
    counts = [f"{end - start:,}" for start, end in zip(heads, [*list(heads)[1:], len(lines)], strict=True)]
    return markdown(["part", "lines"], [*zip(heads.values(), counts, strict=True), ["all", f"{len(lines):,}"]])


def count_tokens(code):
    """Returns the number of words, numbers and signs in C++ code, without comments. The contents of string literals count, too."""
    without_comments = re.sub(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', lambda found: found[1] or " ", code, flags=re.DOTALL)
    return len(re.findall(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]", without_comments))


def tokens():
    """Returns a sentence with the number of tokens in model_new.py's CUDA strings and in its C++ binding."""
    source = (ROOT / "model_new.py").read_text(encoding="utf-8")
    counts = Counter()
    for language, code in re.findall(r'^_(CUDA|CPP)_\w+ = r"""(.*?)"""', source, re.MULTILINE | re.DOTALL):
        counts[language] += count_tokens(code)
    return f"The CUDA text without comments has {counts['CUDA']:,} words, numbers and signs, and the binding has {counts['CPP']:,}."


def sizes_of_peers(rows):
    """Returns the float32 rows from N = 512 to 8192 or, if there are none, all float32 rows."""
    rows = [row for row in rows if row["dtype"] == "float32"]
    return [row for row in rows if 512 <= row["N"] <= 8192] or rows


SPEED = {"reference, µs": "{reference.time_if_disturbed}", "ours, µs (10 % to 90 %)": "{ours.time}", "ratio": "{row.quiet_ratio[ours]}"}
ERRORS = {"reference error: norm / worst": "{reference.errors}", "our error: norm / worst": "{ours.errors}{row.breach}"}
TIMES = SPEED | ERRORS
PRODUCTS = {"product (float32, if nothing is said)": "{row.label}", **TIMES}
PEER_NAMES = {"reference": "`tril(matmul)`", "tf32": "the same, TF32 allowed", "strmm": "cuBLAS TRMM", "blocked": "cuBLAS, blocks of 1024"}
PEER_NAMES |= {"triton": "Triton kernel", "ours": "**ours**"}
PEERS = {"N (times in µs)": "{row.size_and_dtype}"}  # the short table in README.md
PEERS |= {name: f"{{{side}.time_if_disturbed}}" for side, name in PEER_NAMES.items()}
PEERS |= {"ratio": "{row.quiet_ratio[ours]}", "error of TF32": "{tf32.norm_error}", "of ours": "{ours.norm_error}"}
PEERS_ERRORS = {"N": "{row.size_and_dtype}"}
PEERS_ERRORS |= {f"{name}, µs; error": f"{{{side}.time}}; {{{side}.errors}}" for side, name in PEER_NAMES.items()}
FAMILY = PRODUCTS | {"cuBLAS TRMM or SYRK, µs": "{cublas.median}", "a copy of X, µs": "{copy.median}"}
HOST = {"host time a call, µs": "{mode} (N = {N})", "torch.matmul": "{row[torch.matmul].median}", "tril(matmul)": "{tril(matmul).median}"}
HOST |= {"ours": "{tril_matmul.median}", "ours − torch.matmul": "{ours_minus_matmul_us:.1f}"}
# Most columns have times of operations that stand for a product's parts, as suite_limits in benchmark.py explains. In the last two,
# one call makes a copy, as packing does, and then cuBLAS's float16 products. A product of ours that did nothing else would take as long.
LIMITS = {
    "N": "{N}",
    "copy, µs": "{copy.median}",
    "float16 product, uniform, µs": "{float16_product_uniform.median}",
    "normal, µs": "{float16_product_normal.median}",
    "write, µs": "{write.median}",
    "launch, µs": "{launch.median}",
    "ours, uniform, µs (ratio)": "{ours.median} ({row.quiet_ratio[ours]})",
    "copy, then product, uniform, µs (ratio)": "{copy_then_product_uniform.median} ({row.quiet_ratio[copy_then_product_uniform]})",
    "normal, µs (ratio)": "{copy_then_product_normal.median} ({row.quiet_ratio[copy_then_product_normal]})",
}
# check.py measures the times in this table.
CHECK = {"check.py": "{problem}, {dtype}{row.settings} {dims}", "calls judged": "{calls}", "verdict": "{verdict}"}
for mode, head in (("forward", "forward"), ("gradients", "with backward")):
    CHECK |= {f"{head}: reference, µs": f"{{timings[{mode}][reference_us]:,.0f}}"}
    CHECK |= {f"{head}: ours, µs": f"{{timings[{mode}][solution][us]:,.0f}}", f"{head}: ratio": f"{{timings[{mode}].ratio}}"}
BUILD = {"import (cold: the kernels are compiled)": "{state}", "model_new beyond torch, s": "{import_s:.2f}"}
BUILD |= {"first call after it, s": "{first_call_s:.2f}", "torch itself, s": "{torch_s:.2f}"}
INFINITE = {"product": "{row.label}", "with Inf at, or of": "{where}", "ours, µs (10 % to 90 %)": "{ours.time}"}
INFINITE |= {"of finite operands, µs": "{finite.median}", "reference, as fast with either, µs": "{reference.median}"}
RUNS = {"N": "{N}", "inputs": "{inputs}", "path": "{row.path}", "runs": "{runs}", "runs that differ": "{different}"}
DEVICES = {"what": "{what}, {mode}", "one GPU, ms": "{one_ms:.2f}", "two, ms": "{together_ms:.2f}", "ratio": "{row.ratio}"}
DEVICES |= {"of which the all-reduce of dA, ms": "{all_reduce_ms:.2f}", "error: norm": "{row.norm_error}"}
SOAK = {"benchmarks/soak.py": "{section}: {what}", "calls": "{calls:,} of {planned:,}", "results": "{comparisons:,}", "wrong": "{wrong}"}
SOAK |= {"worst, of its bound": "{worst_error_of_bound:.3f}", "s": "{seconds:.0f}"}
# Maps a table's name to (record, {head of a column: template of its cells} or a function that renders the rows). A third item, if there is
# one, selects the rows of one group.
TABLES = {
    "peers": ("peers", lambda rows: columns(sizes_of_peers(rows), PEERS)),
    "peers-errors": ("peers", PEERS_ERRORS),
    "forward": ("forward", {"N": "{N}", "inputs": "{inputs}", **SPEED, "TFLOP/s": "{row.rate}", **ERRORS}, "sizes"),
    "hard": ("forward", {"inputs": "{inputs} (N = {N})", "path": "{row.path}", **TIMES}, "hard"),
    "dtypes": ("forward", PRODUCTS, "dtypes"),
    "tf32": ("forward", PRODUCTS, "tf32"),
}
FULL = {"family": FAMILY, "check": CHECK, "host": HOST, "build": BUILD, "determinism": RUNS, "registers": registers, "limits": LIMITS}
NAN = {"call, and where the NaN or Inf is": "{function}", "N, or batch x N": "{shape}", "finite, ms": "{finite_ms:.3g}"}
NAN |= {f"{place}, {value}": f"{{ratios[{place} {value}]:.1f}}" for value in ("nan", "inf") for place in ("one", "row", "column", "all")}
NAN |= {"most": "{most:.1f}"}
FULL |= {"nan": NAN, "infinite": INFINITE, "sanitizers": sanitizers, "soak": SOAK, "profile": profile, "cycles": cycles, "devices": DEVICES}
FULL |= dict.fromkeys(("mma", "batch", "backward", "problems", "cpu"), PRODUCTS)
TABLES |= {name: (name, template) for name, template in FULL.items()}  # tables of all rows of the record that has the same name
# Maps a key of a record's versions to the name that stands below a table.
VERSIONS = {"torch": "torch", "cuda": "CUDA", "driver": "driver", "triton": "Triton", "nvcc": "nvcc"}
SENTENCES = {  # maps a name to (records, a function that renders their rows)
    "factor": (("peers",), factor),
    "by-type": (("forward", "backward", "batch", "family", "h100/forward", "mma"), by_type),
    "seconds": (("build", "check"), seconds),
    "short-calls": (("check", "backward", "host"), short_calls),
    "proof": (("check",), proof),
    "parts": ((), parts),
    "tokens": ((), tokens),
    "wanted": (("wanted", "forward", "backward", "batch", "problems", "family", "cpu", "mma"), wanted),
    "slower": (("forward", "problems", "backward", "batch", "family", "cpu"), slower),
    "slowest": (("forward", "problems", "backward", "batch", "family", "cpu"), slowest),
}


OTHER_REMEDIES = {  # what to do if a record that benchmark.py does not write is missing or cannot be used
    "soak": "run: python benchmarks/soak.py",
    "sanitizers": "run: python tests/sanitize.py --json benchmarks/results/sanitizers.json",
    "wanted": "it was written by hand; restore it with git",
}


def remedy(suite):
    """Returns what to do if the record of a suite, or of FOLDER/suite, is missing or unusable."""
    folder, _, name = suite.rpartition("/")
    command = f"run: python benchmarks/benchmark.py --suite {name}" + f" --out benchmarks/results/{folder}" * bool(folder)
    return OTHER_REMEDIES.get(name, command)


def read_record(results, suite):
    """Returns the record of a suite, or of FOLDER/suite. Raises TableError if the record is missing, is no JSON, is incomplete or has
    failures that no table shows."""
    path = results / f"{suite}.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"), object_hook=Row)
    except (FileNotFoundError, json.JSONDecodeError) as wrong:
        raise TableError(f"{path} is {'missing' if isinstance(wrong, OSError) else f'no JSON ({wrong})'}; {remedy(suite)}") from None
    if not record.get("complete"):
        raise TableError(f"{path} was cut short; {remedy(suite)}")
    marked = [row for row in record["rows"] if row.get("within_contract") is False or row.get("different")]
    # A marked row is a failure that a table shows. Any other failure has usually left no row, so the record is refused.
    if len(record["failures"]) > len(marked):
        raise TableError(f"{path} has failures that no table shows ({'; '.join(record['failures'])}); {remedy(suite)}")
    return record


def table(name, results):
    """Returns the text that belongs between the markers of a name. Raises TableError."""
    folder, _, kind = name.rpartition("/")
    if kind not in TABLES and name not in SENTENCES:
        raise TableError(f"there is no table '{name}'; accepted: {', '.join([*TABLES, *SENTENCES])}")
    suites, render, *group = SENTENCES[name] if name in SENTENCES else ((f"{folder}/{TABLES[kind][0]}".strip("/"),), *TABLES[kind][1:])
    records = [read_record(results, suite) for suite in suites]
    rows = [record["rows"] for record in records]
    rendered = all(rows) and (render(*rows) if callable(render) else columns(*rows, render, *group))
    if rendered and name in SENTENCES:
        return rendered
    record, suite = records[0], suites[0]
    if not rendered:
        raise TableError(f"{results / suite}.json has no rows for the table '{name}'; {remedy(suite)}")
    versions = [f"{label} {record['versions'][key]}" for key, label in VERSIONS.items() if record["versions"].get(key)]
    source = [record["device"], *versions, record["date"], f"commit {record['commit']}", f"from benchmarks/results/{suite}.json"]
    return f"{rendered}\n\n{', '.join(source)}."


# ---- Files -----------------------------------------------------------------------------------------------------------

DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("results", "kernel", "limits", "judge", "history"))]


def fill(text, results):
    """Returns the text of a document with every table made anew between its markers. Raises TableError."""
    parts = re.split(r"^(<!-- (?:begin|end): \S+ -->)$", text, flags=re.MULTILINE)  # the parts are text, marker, table, marker, text, ...
    for index in range(1, len(parts), 4):
        begin, end = parts[index], "".join(parts[index + 2 : index + 3])
        if not begin.startswith("<!-- begin: ") or end != begin.replace("begin", "end", 1):
            raise TableError(f"{begin} is followed by {end or 'no marker'}; a begin needs an end of the same name")
        parts[index + 1] = f"\n{table(begin.split()[2], results)}\n"
    return "".join(parts)


def refilled(path, results):
    """Returns a function that writes the document anew, or None if the document is up to date."""
    text = path.read_text(encoding="utf-8")
    filled = fill(text, results)
    return None if filled == text else lambda: path.write_text(filled, encoding="utf-8")


def bring_up_to_date(document, script, files, make_writer, arguments=None):
    """Runs the command line of this script or of figures.py. make_writer(path, results) returns a function that writes the file, or None if
    the file is up to date. Returns the exit status."""
    parser = argparse.ArgumentParser(description=document.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is not up to date")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR", help="the folder of the records")
    parser.add_argument("--files", type=Path, nargs="+", default=files, metavar="FILE", help="the files to bring up to date (default: all)")
    options, status = parser.parse_args(arguments), 0
    for path in options.files:
        try:
            write = make_writer(path, options.results)
            if write and options.check:
                raise TableError(f"not up to date; run: python benchmarks/{script}")
            if write:
                write()
            print(f"{path}: {'written' if write else 'up to date'}")
        except (TableError, FileNotFoundError) as problem:
            print(f"{path}: {problem}", file=sys.stderr)
            status = 1
    return status


main = partial(bring_up_to_date, __doc__, "tables.py", DOCUMENTS, refilled)

if __name__ == "__main__":
    sys.exit(main())
