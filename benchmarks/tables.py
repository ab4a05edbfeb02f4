"""Writes the tables of README.md and docs/*.md from the records of benchmarks/benchmark.py.

    python benchmarks/tables.py            bring the documents up to date
    python benchmarks/tables.py --check    exit with 1 if one of them is not, and change nothing

A table stands between two marker lines, and all between them is replaced:

    <!-- begin: NAME -->
    <!-- end: NAME -->

NAME is one of TABLES, which says what record each is made of and by which function, or of SENTENCES: what the text says in numbers is made
from the records, and from model_new.py's lines, as well. (history.json is the one record kept by hand, while the kernel was made.) A
marker whose record is missing, cut short or has rows that could not be measured is an error: no table without a record.
"""

import argparse
import ast
import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class TableError(Exception):
    """A table that cannot be made; the message names the file and the remedy."""


# ---- Numbers ---------------------------------------------------------------------------------------------------------


def microseconds(value):
    """Three to four digits: 9.2, 112, 2,728; no more is measured."""
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def ratio(value):
    return f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x"


def error(value):
    """7.3e-7, without the padding zero of the exponent."""
    if value == 0:
        return "0"
    return re.sub(r"e([-+])0*(\d)", r"e\1\2", f"{value:.1e}").replace("e+", "e")


def errors(side):
    return f"{error(side['norm_error'])} / {error(side['worst_error'])}"


def time_of(side):
    """Median with its spread."""
    return f"{microseconds(side['median_us'])} ({microseconds(side['p10_us'])} to {microseconds(side['p90_us'])})"


FAR = 1.25  # median over 10th percentile, as in check.py (which imports torch; this needs none)


def disturbed(side):
    """Whether the calls lie so far apart that others must have used the machine."""
    return side["median_us"] > FAR * side["p10_us"]


def quiet_ratio(value, *sides):
    """The ratio of sides that were measured together; none where one was disturbed."""
    return "–" if any(map(disturbed, sides)) else ratio(value)


def markdown(head, rows):
    """A Markdown table; the first column to the left, the rest to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


# ---- Tables ----------------------------------------------------------------------------------------------------------

TIMES_HEAD = ["reference, µs", "ours, µs (10 % to 90 %)", "ratio", "reference error: norm / worst", "our error: norm / worst"]


def times(row):
    """The five columns that every comparison has; no ratio where one side was disturbed."""
    reference, ours = row["reference"], errors(row["ours"]) + ("" if row["within_contract"] else " (not within the contract)")
    theirs = time_of(reference) if disturbed(reference) else microseconds(reference["median_us"])
    return [theirs, time_of(row["ours"]), quiet_ratio(row["ratio"], reference, row["ours"]), errors(reference), ours]


def rate(row):
    """TFLOP/s of what the mathematics needs."""
    value = row["useful_flop"] / row["ours"]["median_us"] / 1e6
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def path_of(row):
    """Which kernel computed it, and how many outliers packing kept whole."""
    name = row["path"] or "not said"
    return f"{name}, {row['outliers']:,} outliers" if row.get("outliers") else name


def of_dtype(row):
    return "" if row["dtype"] == "float32" else f", {row['dtype']}"


def comparison(group, first, label):
    """The renderer of one group of rows; `label` makes the first column from a row."""

    def render(rows):
        rows = [row for row in rows if row.get("group") == group]
        return markdown([first, *TIMES_HEAD], [[label(row), *times(row)] for row in rows]) if rows else None

    return render


def forward(rows):
    rows = [row for row in rows if row["group"] == "sizes"]
    head = ["N", "inputs", *TIMES_HEAD[:3], "TFLOP/s", *TIMES_HEAD[3:]]
    cells = [[row["N"], row["inputs"], *times(row)[:3], rate(row), *times(row)[3:]] for row in rows]
    return markdown(head, cells) if rows else None


def hard(rows):
    rows = [row for row in rows if row["group"] == "hard"]
    head = ["inputs", "path", *TIMES_HEAD]
    return markdown(head, [[f"{row['inputs']} (N = {row['N']})", path_of(row), *times(row)] for row in rows]) if rows else None


def portable(rows):
    return markdown(["N", "dtype", *TIMES_HEAD], [[row["N"], row["dtype"], *times(row)] for row in rows]) if rows else None


def mma(rows):
    cells = [
        [row["shape"].replace(" x ", "×"), row["dtype"], row["inputs"] if row["problem"] == "lower" else row["problem"], *times(row)]
        for row in rows
    ]
    return markdown(["N", "dtype", "inputs, or another problem", *TIMES_HEAD], cells) if rows else None


PROBLEM_NAMES = {"lower": "lower · lower (15)", "upper": "upper · upper (14)", "transposed_a": "Aᵀ · B (16)"}


def problems(rows):
    cells = [[PROBLEM_NAMES[row["problem"]] + of_dtype(row), row["shape"].replace(" x ", "×"), *times(row)] for row in rows]
    return markdown(["KernelBench level 1, problem", "size", *TIMES_HEAD], cells) if rows else None


def check(rows):
    """What check.py found. Its times are its own: every call has fresh inputs."""
    head = ["check.py", "calls judged", "verdict", "forward: reference, µs", "ours, µs", "ratio", "with backward: reference, µs"]

    def side(timing):
        return [*(microseconds(us) for us in (timing["reference_us"], timing["solution"]["us"])), ratio(timing["ratio"])]

    def judged(row):
        tf32, forced = row.get("options", {}).get("tf32"), row["path"] != "auto"
        return f"{row['problem']}, {row['dtype']}" + ", TF32 allowed" * bool(tf32) + f", {row['path']} kernel" * forced

    cells = [
        [
            f"{judged(row)} ({'×'.join(map(str, row['dims']))})",
            row["calls"],
            row["verdict"],
            *side(row["timings"]["forward"]),
            *side(row["timings"]["gradients"]),
        ]
        for row in rows
    ]
    return markdown([*head, "ours, µs", "ratio"], cells) if rows else None


def host(rows):
    head = ["host time a call, µs", "torch.matmul", "tril(matmul)", "ours", "ours − torch.matmul"]
    columns = ("torch.matmul", "tril(matmul)", "tril_matmul")
    cells = [
        [f"{row['mode']} (N = {row['N']})", *(microseconds(row[c]["median_us"]) for c in columns), f"{row['ours_minus_matmul_us']:.1f}"]
        for row in rows
    ]
    return markdown(head, cells) if rows else None


def build(rows):
    head = ["import", "model_new beyond torch, s", "first call after it, s", "torch itself, s"]
    cells = []
    for state, name in (("cold", "cold: the kernels are compiled"), ("warm", "warm: they are there")):
        of_state = [row for row in rows if row["state"] == state]
        if of_state:
            columns = [statistics.median(row[column] for row in of_state) for column in ("import_s", "first_call_s", "torch_s")]
            cells.append([name, *(f"{value:.1f}" if value >= 9.95 else f"{value:.2f}" for value in columns)])
    return markdown(head, cells) if cells else None


FAMILIES = {  # column -> what a mangled kernel's name holds
    "portable": "portable_product",
    "mma, 64 × 64": r"mma_product.*Li64E",
    "mma, 128 × 128": r"mma_product.*Li128E",
    "packing": "pack_blocks",
    "tf32": "tf32_product",
    "Hopper": "hopper_product",
    "half precision": "half_precision",
    "behind Hopper": "product_behind",
}


def registers(rows):
    """Registers of a thread, the least and the most of a family's kernels; a dash where they have no body."""
    cells = []
    for architecture in dict.fromkeys(row["architecture"] for row in rows):
        here = [row for row in rows if row["architecture"] == architecture]
        line = [architecture]
        for pattern in FAMILIES.values():
            of_family = [row["registers"] for row in here if re.search(pattern, row["kernel"])]
            empty = max(of_family, default=0) <= 4  # no kernel, or one without a body there
            line.append("–" if empty else f"{min(of_family)} to {max(of_family)}" if len(set(of_family)) > 1 else of_family[0])
        cells.append([*line, sum(row["spilled_bytes"] for row in here)])
    return markdown(["architecture", *FAMILIES, "bytes spilled"], cells) if cells else None


def determinism(rows):
    head = ["N", "inputs", "path", "runs", "runs that differ"]
    cells = [[row["N"], row["inputs"], row["path"] or "not said", row["runs"], row["different"]] for row in rows]
    return markdown(head, cells) if rows else None


def limits(rows):
    """The parts of a product, and what the ratio would be if packing cost a copy, the products what they cost cuBLAS, and nothing more."""
    parts = ("copy", "float16_product_uniform", "float16_product_normal", "write", "launch")
    head = ["N", "copy, µs", "float16 product, uniform, µs", "normal, µs", "write, µs", "launch, µs", "ours, uniform, µs (ratio)"]
    wholes = ("ours", "copy_then_product_uniform", "copy_then_product_normal")

    def whole(row, part):
        reference, side = row["reference"], row[part]
        return f"{microseconds(side['median_us'])} ({quiet_ratio(reference['median_us'] / side['median_us'], reference, side)})"

    cells = [[row["N"], *(microseconds(row[part]["median_us"]) for part in parts), *(whole(row, part) for part in wholes)] for row in rows]
    return markdown([*head, "copy, then product, uniform, µs (ratio)", "normal, µs (ratio)"], cells) if rows else None


def profile(rows):
    """ncu's units, in bytes a second, bytes and nanoseconds, made readable."""
    scales = {
        "ns": (1e3, "µs"),
        "second": (1e-6, "µs"),
        "byte/s": (1e12, "TB/s"),
        "byte/second": (1e12, "TB/s"),
        "byte": (1e6, "MB"),
        "%": (1, "%"),
    }
    names = [key for key in rows[0] if key != "kernel"] if rows else []

    def cell(row, name):
        if name not in row:
            return "n/a"
        value, unit = row[name]
        scale, shown = scales.get(unit, (1, unit))
        return f"{value / scale:.3g} {shown}"

    cells = [[row["kernel"], *(cell(row, name) for name in names)] for row in rows]
    return markdown(["kernel", *(name.replace("_", " ") for name in names)], cells) if rows else None


def history(rows):
    cells = [[row["version"], row["prediction"], row["measured"], row["said"]] for row in rows]
    return markdown(["version", "predicted, µs", "measured, µs", "what the profiler or the trace said"], cells) if rows else None


PEER_NAMES = {
    "reference": "`tril(matmul)`",
    "tf32": "the same, TF32 allowed",
    "strmm": "cuBLAS TRMM",
    "blocked": "cuBLAS, blocks of 1024",
    "triton": "Triton kernel",
    "ours": "**ours**",
}
PEERS_LEFT_OUT = 8192  # of the README's table, which is to be short


def peer_label(row):
    return str(row["N"]) if row["dtype"] == "float32" else f"{row['N']}, {row['dtype']}"


def peers(rows):
    """The README's table: times, and the errors of who is not float32 and of ours."""
    head = [f"{name} (error)" if side in ("tf32", "ours") else name for side, name in PEER_NAMES.items()]
    cells = []
    for row in rows:
        if row["N"] == PEERS_LEFT_OUT:
            continue
        times = {side: microseconds(row[side]["median_us"]) if side in row else "–" for side in PEER_NAMES}
        for side in {"tf32", "ours"} & row.keys():
            times[side] += f" ({error(row[side]['norm_error'])})"
        cells.append([peer_label(row), *times.values(), ratio(row["ratio"])])
    return markdown(["N (times in µs)", *head, "ratio"], cells) if rows else None


def peers_errors(rows):
    """All of the record: times with their spread, errors, and why somebody is not in it."""
    cells = [
        [peer_label(row), *(f"{time_of(row[side])}; {errors(row[side])}" if side in row else "–" for side in PEER_NAMES)] for row in rows
    ]
    reasons = dict.fromkeys(why for row in rows for why in row["skipped"].values())
    told = f"\n\n–: {'; '.join(reasons)}." if reasons else ""
    head = ["N", *(f"{name}, µs; error" for name in PEER_NAMES.values())]
    return markdown(head, cells) + told if rows else None


# ---- Sentences -------------------------------------------------------------------------------------------------------


def factor(rows):
    """Where the factor comes from, at 4096 or the largest N there is."""
    rows = [row for row in rows if row["dtype"] == "float32"]
    if not rows:
        return None
    row = next((row for row in rows if row["N"] == 4096), rows[-1])
    dense, useful = 2 * row["N"] ** 3, row["useful_flop"]
    reference, ours = (flop / row[side]["median_us"] / 1e6 for flop, side in ((dense, "reference"), (useful, "ours")))
    triangle, rest = ratio(dense / useful), ratio(row["ratio"] * useful / dense)
    return (
        f"At N = {row['N']} ours is {ratio(row['ratio'])} faster than `tril(matmul)`. {triangle} is the triangle: {useful / 1e9:.3g} GFLOP"
        f" instead of {dense / 1e9:.4g}.\n{rest} is tensor cores, three float16 products for each float32 one: {ours:.3g} TFLOP/s, where"
        f" cuBLAS has {reference:.3g} from CUDA cores."
    )


def proof(rows):
    """What check.py said in the end, word for word."""
    if not rows:
        return None
    told = [f"{check['verdict']:<6} {check['name']}: {check['detail']}" for check in rows[0]["checks"] if check["verdict"] != "note"]
    return "\n".join(["```", *told, *rows[0]["sentence"].replace("; ", ";\n").split("\n"), "```"])


def cpu_label(row):
    return row["shape"].replace(" x ", "×") + ", forward and backward" * row.get("problem", "").endswith("dB")


def slower(*records):
    """What is slower than the reference, and who is faster than ours."""
    cpu, compared, measured = records[-1], records[-2], [row for rows in records[:-2] for row in rows]

    def told(row):
        problem, *gradients = row["problem"].split(", ", 1)
        special = [row["dtype"]] * (row["dtype"] != "float32") + [problem] * (problem != "lower")
        why = "; dense: there is no work to leave out" if row["problem"] == "transposed_a" else ""
        shape = row["shape"].replace(" x ", "×") + " with gradients" * len(gradients)
        return f"{', '.join([*special, shape])} ({ratio(row['ratio'])}{why})"

    on_gpu = dict.fromkeys(told(row) for row in measured if row["ratio"] < 1)
    on_cpu = [told(row) for row in cpu if row["ratio"] < 1]
    ahead = []
    for row in compared:
        faster = [side for side in PEER_NAMES if side in row and row[side]["median_us"] < row["ours"]["median_us"] and side != "reference"]
        if faster:
            times = ", ".join(f"{PEER_NAMES[side]} {microseconds(row[side]['median_us'])}" for side in faster)
            ahead.append(f"{peer_label(row)}: {times} (ours {microseconds(row['ours']['median_us'])} µs)")
    small = "on the CPU, where Python's checks and masks cost more than they save in so small a product"
    slow = "; ".join(f"{where}: {', '.join(rows) or 'nothing'}" for where, rows in (("on the GPU", on_gpu), (small, on_cpu)))
    by_whom = "; ".join(ahead) + " ([where ours goes](docs/kernel.md#half-precision))" if ahead else "nobody in the table above"
    return f"Slower than the reference {slow}.\nFaster than ours: {by_whom}."


WANTED_SUITES = ("forward", "backward", "batch", "mma")
HALF, MMA, TF32 = "[half precision](#half-precision)", "[mma kernel](#the-mma-kernel)", "[tf32 kernel](#the-tf32-kernel)"
WANTED = {  # product_label of a row -> the ratio that was asked for, and what keeps the product from it
    "4096": (18, "packing 36 µs, and 118 for products of 81 (below)"),
    "2048": (9, "four launches, 10 µs of packing, 4 to the first stage (below)"),
    "4096, TF32 allowed": (5, "packing 33 µs before 56 of the product ([TF32's kernel](#float32-out-of-float16))"),
    "4096, rows of A over 16 decades": (6, "a fallback: the mma kernel's 425 µs, after packing has found it out"),
    "512, float16": (1, ""),
    "1024, float16": (1.2, f"one step after the other ({MMA})"),
    "2048, float16": (2.3, f"a third of a CTA's cycles before the first product ({HALF})"),
    "4096, float16": (4.5, f"start, zeros and an uneven end ({HALF})"),
    "8192, float16": (5, ""),
    "4096, float64": (4, ""),
    "4096, float16, forward and backward": (4, "three products like the forward one"),
    "64×512×512": (5.5, f"latencies that twelve warps do not hide ({TF32})"),
    "16×1024×1024": (7, ""),
    "8×2048×2048": (10, ""),
    "1024×128×128": (3, ""),
    "16×1024×1024, float16": (3, f"memory ({HALF})"),
    "4096, float16, mma kernel forced": (3, f"the L2, and an uneven end ({MMA})"),
    "4096, mma kernel forced": (6.5, f"splitting and promoting beside mma.sync ({MMA})"),
}


def product_label(row, suite):
    """What tells a row of a suite's record from all others of WANTED's suites."""
    parts = [row["shape"].replace(" x ", "×") + of_dtype(row)]
    parts += [row["problem"]] * (row["problem"] in ("upper", "transposed_a")) + [row["inputs"]] * (row["inputs"] != "uniform")
    parts += ["TF32 allowed"] * (row["group"] == "tf32")
    return ", ".join(parts + {"backward": ["forward and backward"], "mma": ["mma kernel forced"]}.get(suite, []))


def wanted(*records):
    """What was asked for, what it is, and why it is less."""
    rows = {product_label(row, suite): row for suite, rows in zip(WANTED_SUITES, records, strict=True) for row in rows}
    cells = []
    for label, (least, why) in WANTED.items():
        row = rows.get(label)
        if row and not disturbed(row["reference"]) and not disturbed(row["ours"]):
            cells.append([label, ratio(least), ratio(row["ratio"]), "met" if row["ratio"] >= least else why])
    return markdown(["product (float32, if nothing is said)", "wanted", "measured", "met, or what it takes its time for"], cells)


PARTS = (  # of model_new.py; how the names of its strings begin; the suites with it and without it, and whose times to compare
    ("portable kernel; without it no GPU before Ampere", ("_CUDA_PORTABLE",), None),
    ("tf32 kernel; without it, by the mma kernel", ("_CUDA_TF32",), ("forward", "mma", "float32", (512, 1024))),
    ("mma kernel; without it, by the portable one", ("_CUDA_MMA",), ("mma", "portable", "float32", (2048, 4096))),
    ("half precision; without it, by the mma kernel", ("_CUDA_HALF", "_CUDA_AGAIN"), ("forward", "mma", "float16", (2048, 4096))),
    (
        "Hopper kernel, packing, what runs behind it; without them, by the mma kernel",
        ("_CUDA_HOPPER", "_CUDA_PACK", "_CUDA_BEHIND"),
        ("forward", "mma", "float32", (2048, 4096)),
    ),
    ("types, schedule, PTX, epilogue, element types, launching, layouts: what they share", ("_CUDA",), None),
    ("binding", ("_CPP",), None),
    ("Python: build, operator for CPU and GPU, autograd, public functions, docstrings", ("",), None),
)


def parts(*records):
    """How long the parts of model_new.py are, and what products would take without them."""
    suites = zip(("forward", "mma", "portable"), records, strict=True)
    plain = [(suite, row) for suite, rows in suites for row in rows if row["group"] in ("sizes", "dtypes") and row["inputs"] == "uniform"]
    times = {(suite, row["dtype"], row["N"]): microseconds(row["ours"]["median_us"]) for suite, row in plain}
    text = (ROOT / "model_new.py").read_text(encoding="utf-8")
    strings = [node for node in ast.parse(text).body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    named = [(node.targets[0].id, node.end_lineno) for node in strings if node.targets[0].id.startswith(("_CUDA_", "_CPP_"))]
    lines, before = dict.fromkeys((part for part, _, _ in PARTS), 0), ast.parse(text).body[0].end_lineno
    lines[PARTS[-1][0]] = before
    for name, end in [*named, ("", len(text.splitlines()))]:  # what stands before a string explains it
        lines[next(part for part, starts, _ in PARTS if name.startswith(starts))] += end - before
        before = end
    cells = []
    for part, _, compared in PARTS:
        told = []
        if compared:
            with_it, without, dtype, sizes = compared
            pairs = [(N, times.get((without, dtype, N)), times.get((with_it, dtype, N))) for N in sizes]
            told = [f"{dtype}, {N}: {slow} instead of {fast} µs" for N, slow, fast in pairs if slow and fast]
        cells.append([part, f"{lines[part]:,}", "; ".join(told) or "–"])
    return markdown(["part", "lines", "what products would take"], [*cells, ["all", f"{sum(lines.values()):,}", "–"]])


TABLES = {  # name -> record, renderer of its rows (None: the record has none for it)
    "peers": ("peers.json", peers),
    "peers-errors": ("peers.json", peers_errors),
    "forward": ("forward.json", forward),
    "hard": ("forward.json", hard),
    "dtypes": ("forward.json", comparison("dtypes", "dtype", lambda row: f"{row['dtype']} (N = {row['N']})")),
    "tf32": ("forward.json", comparison("tf32", "N, TF32 allowed", lambda row: row["N"])),
    "mma": ("mma.json", mma),
    "portable": ("portable.json", portable),
    "batch": ("batch.json", comparison("batch", "batch", lambda row: row["shape"].replace(" x ", "×") + of_dtype(row))),
    "backward": (
        "backward.json",
        comparison("backward", "N, forward and backward", lambda row: row["shape"].replace(" x ", "×") + of_dtype(row)),
    ),
    "problems": ("problems.json", problems),
    "check": ("check.json", check),
    "host": ("host.json", host),
    "build": ("build.json", build),
    "determinism": ("determinism.json", determinism),
    "registers": ("registers.json", registers),
    "limits": ("limits.json", limits),
    "profile": ("profile.json", profile),
    "history": ("history.json", history),
    "cpu": ("cpu.json", comparison("cpu", "size", cpu_label)),
}

SENTENCES = {  # name -> records, renderer of their rows
    "factor": (("peers.json",), factor),
    "proof": (("check.json",), proof),
    "parts": (("forward.json", "mma.json", "portable.json"), parts),
    "wanted": (tuple(f"{suite}.json" for suite in WANTED_SUITES), wanted),
    "slower": (tuple(f"{suite}.json" for suite in ("forward", "problems", "backward", "batch", "portable", "peers", "cpu")), slower),
}


def read_record(results, file):
    """A record that a table may be made from. Raises TableError."""
    path = results / file
    suite = file.removesuffix(".json")
    remedy = f"run: python benchmarks/benchmark.py --suite {suite}"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TableError(f"{path} is missing; {remedy}") from None
    except json.JSONDecodeError as wrong:
        raise TableError(f"{path} is no JSON ({wrong}); {remedy}") from None
    if not record.get("complete"):
        raise TableError(f"{path} was cut short; {remedy}")
    marked = [row for row in record["rows"] if row.get("within_contract") is False or row.get("different")]
    if len(record["failures"]) > len(marked):  # a marked row is a failure that its table shows; the others left no row to show
        raise TableError(f"{path} lacks rows that failed ({'; '.join(record['failures'])}); {remedy}")
    return record


def source_line(record, file):
    """Where the numbers come from."""
    versions = record["versions"]
    parts = [record["device"], f"torch {versions['torch']}"]
    parts += [f"CUDA {versions['cuda']}"] if versions.get("cuda") else []
    parts += [f"driver {versions['driver']}"] if versions.get("driver") else []
    parts += [f"Triton {versions['triton']}"] if versions.get("triton") else []
    parts += [f"nvcc {versions['nvcc']}"] if versions.get("nvcc") else []
    parts += [record["date"], f"commit {record['commit']}", f"from benchmarks/results/{file}"]
    if "rounded" in record:  # says why
        parts.append("rounded")
    return ", ".join(parts) + "."


def table(name, results):
    """The text between two markers. Raises TableError."""
    if name not in TABLES and name not in SENTENCES:
        raise TableError(f"there is no table '{name}'; accepted: {', '.join([*TABLES, *SENTENCES])}")
    file, render = TABLES.get(name) or SENTENCES[name]
    files = file if name in SENTENCES else (file,)
    records = [read_record(results, file) for file in files]
    rendered = render(*(record["rows"] for record in records))
    if rendered is None:
        file = results / files[0]
        raise TableError(f"{file} has no rows for the table '{name}'; run: python benchmarks/benchmark.py --suite {file.stem}")
    return rendered if name in SENTENCES else f"{rendered}\n\n{source_line(records[0], file)}"


# ---- Files -----------------------------------------------------------------------------------------------------------

MARKER = re.compile(r"<!-- (begin|end): (\S+) -->")
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("results", "kernel", "judge", "history"))]


def fill(text, results):
    """The text with every table between its markers made anew. Raises TableError."""
    lines, name = [], None
    for number, line in enumerate(text.split("\n"), 1):
        marker = MARKER.fullmatch(line.strip())
        if marker is None:
            if name is None:
                lines.append(line)
            continue
        kind, marked = marker.groups()
        if kind == "begin" and name is not None:
            raise TableError(f"line {number} begins the table '{marked}' before <!-- end: {name} -->")
        if kind == "end" and marked != name:
            raise TableError(f"line {number} ends the table '{marked}', but " + (f"'{name}' is open" if name else "none is open"))
        if kind == "begin":
            name = marked
            lines += [line, table(name, results)]
        else:
            name = None
            lines.append(line)
    if name is not None:
        raise TableError(f"the table '{name}' has no <!-- end: {name} -->")
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Write the tables into README.md and docs/*.md from the records of benchmarks/benchmark.py."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is not up to date")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR", help="where the records lie")
    parser.add_argument("--files", type=Path, nargs="+", default=DOCUMENTS, metavar="FILE")
    given = parser.parse_args(arguments)
    wrong = 0
    for path in given.files:
        try:
            text = path.read_text(encoding="utf-8")
            filled = fill(text, given.results)
        except FileNotFoundError:
            print(f"{path} is missing", file=sys.stderr)
            wrong += 1
        except TableError as problem:
            print(f"{path}: {problem}", file=sys.stderr)
            wrong += 1
        else:
            if filled == text:
                print(f"{path}: up to date")
            elif given.check:
                print(f"{path}: not up to date; run: python benchmarks/tables.py", file=sys.stderr)
                wrong += 1
            else:
                path.write_text(filled, encoding="utf-8")
                print(f"{path}: written")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
