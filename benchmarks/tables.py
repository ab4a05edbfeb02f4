"""Writes the tables of README.md and docs/*.md from the records of benchmarks/benchmark.py.

    python benchmarks/tables.py            bring the documents up to date
    python benchmarks/tables.py --check    exit with 1 if one of them is not, and change nothing

A table stands between two marker lines, `<!-- begin: NAME -->` and `<!-- end: NAME -->`, and all between them is replaced. NAME is one of
TABLES, which says what record each is made of and by which columns, or of SENTENCES: what the text says in numbers is made from the
records, and from model_new.py's headings, as well. (history.json and wanted.json are kept by hand.) A marker whose record is missing, cut
short or has rows that could not be measured is an error: no table without a record.
"""

import argparse
import json
import re
import statistics
import sys
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class TableError(Exception):
    """A table that cannot be made; the message names the file and the remedy."""


# ---- Cells -----------------------------------------------------------------------------------------------------------


def microseconds(value):
    """Three to four digits: 9.2, 112, 2,728; no more is measured."""
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def ratio(value):
    return f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x"


def error(value):
    """7.3e-7, without the padding zero of the exponent."""
    return re.sub(r"e([-+])0*(\d)", r"e\1\2", f"{value:.1e}").replace("e+", "e") if value else "0"


def errors(side):
    return f"{error(side['norm_error'])} / {error(side['worst_error'])}"


def median(side):
    return microseconds(side["median_us"])


def time_of(side):
    """Median with its spread."""
    return f"{median(side)} ({microseconds(side['p10_us'])} to {microseconds(side['p90_us'])})"


FAR = 1.25  # median over 10th percentile, as in check.py (which imports torch; this needs none)


def disturbed(side):
    """Whether the calls lie so far apart that others must have used the machine."""
    return side["median_us"] > FAR * side["p10_us"]


def quiet(rows):
    """Those in which neither the reference nor ours was disturbed."""
    return [row for row in rows if not disturbed(row["reference"]) and not disturbed(row["ours"])]


def quiet_ratio(value, *sides):
    """The ratio of sides that were measured together; none where one was disturbed."""
    return "–" if any(map(disturbed, sides)) else ratio(value)


def calm_ratio(row):
    """A row's ratio; where a side was disturbed, at most that of the calls that were not, the 10th percentiles: no noise hides a loss."""
    return row["ratio"] if quiet([row]) else min(row["ratio"], row["reference"]["p10_us"] / row["ours"]["p10_us"])


def rate(row):
    """TFLOP/s of what the mathematics needs."""
    value = row["useful_flop"] / row["ours"]["median_us"] / 1e6
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def path_of(row):
    """Which kernel computed it, and how many outliers packing kept whole."""
    return (row["path"] or "not said") + (f", {row['outliers']:,} outliers" if row.get("outliers") else "")


def shape(row):
    return str(row.get("shape", row.get("N"))).replace(" x ", "×")


def with_dtype(row):
    return shape(row) + (f", {row['dtype']}" if row["dtype"] != "float32" else "")


# ---- Tables: a column is its head, and what makes its cell from a row: a format string or a function ------------------


def markdown(head, rows):
    """A Markdown table; the first column to the left, the rest to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def columns(rows, cells, group=None):
    """The table of all rows, or of a group; of none there is none."""
    rows = [row for row in rows if group is None or row["group"] == group]
    made = [[cell(row) if callable(cell) else cell.format_map(row) for cell in cells.values()] for row in rows]
    return markdown(cells, made) if rows else None


def grouped(rows, key):
    """[(value, its rows)], in the order of the rows, of which those of one value stand together."""
    return [(value, list(each)) for value, each in groupby(rows, itemgetter(key))]


def of_side(told, *names, absent="–"):
    """Columns of sides by their names: what `told` makes of a side, or a dash where it was not measured."""
    return {head: lambda row, side=side: told(row[side]) if side in row else absent for head, side in names}


SPEED = {
    "reference, µs": lambda row: (time_of if disturbed(row["reference"]) else median)(row["reference"]),
    "ours, µs (10 % to 90 %)": lambda row: time_of(row["ours"]),
    "ratio": lambda row: quiet_ratio(row["ratio"], row["reference"], row["ours"]),
}
RATIO = of_side(ratio, ("ratio", "ratio"))  # whoever was disturbed
ERRORS = {
    "reference error: norm / worst": lambda row: errors(row["reference"]),
    "our error: norm / worst": lambda row: errors(row["ours"]) + " (not within the contract)" * (not row["within_contract"]),
}
TIMES = SPEED | ERRORS
PROBLEM_NAMES = {"lower": "lower · lower (15)", "upper": "upper · upper (14)", "transposed_a": "Aᵀ · B (16)"}
PEER_NAMES = {
    "reference": "`tril(matmul)`",
    "tf32": "the same, TF32 allowed",
    "strmm": "cuBLAS TRMM",
    "blocked": "cuBLAS, blocks of 1024",
    "triton": "Triton kernel",
    "ours": "**ours**",
}
FAMILY = {"what": "{what}", "size": with_dtype, **TIMES}
FAMILY |= of_side(median, ("cuBLAS TRMM or SYRK, µs", "cublas"), ("a copy of X, µs", "copy"))
PEERS_LEFT_OUT = 8192  # of the README's table, which is to be short


def peers(rows):
    """The README's table: times, where nobody disturbed them, and the errors of who is not float32 and of ours."""
    cells = {"N (times in µs)": with_dtype}
    for side, name in PEER_NAMES.items():
        inexact = side in ("tf32", "ours")
        told = (lambda side: f"{median(side)} ({error(side['norm_error'])})") if inexact else median
        cells |= of_side(told, (name + " (error)" * inexact, side))
    return columns([row for row in quiet(rows) if row["N"] != PEERS_LEFT_OUT], cells | RATIO)


def peers_errors(rows):
    """All of the record: times with their spread, errors, and why somebody is not in it."""
    heads = [(f"{name}, µs; error", side) for side, name in PEER_NAMES.items()]
    reasons = dict.fromkeys(chain.from_iterable(row["skipped"].values() for row in rows))
    made = columns(rows, {"N": with_dtype, **of_side(lambda side: f"{time_of(side)}; {errors(side)}", *heads)})
    return f"{made}\n\n–: {'; '.join(reasons)}." if reasons else made


def check(rows):
    """What check.py found. Its times are its own: every call has fresh inputs."""
    cells = []
    for row in rows:
        tf32, forced = row.get("options", {}).get("tf32"), row["path"] != "auto"
        judged = f"{row['problem']}, {row['dtype']}" + ", TF32 allowed" * bool(tf32) + f", {row['path']} kernel" * forced
        cells.append([f"{judged} ({'×'.join(map(str, row['dims']))})", row["calls"], row["verdict"]])
        for timing in (row["timings"]["forward"], row["timings"]["gradients"]):
            cells[-1] += [microseconds(timing["reference_us"]), microseconds(timing["solution"]["us"]), ratio(timing["ratio"])]
    head = ["check.py", "calls judged", "verdict", "forward: reference, µs", "ours, µs", "ratio", "with backward: reference, µs"]
    return markdown([*head, "ours, µs", "ratio"], cells)


def build(rows):
    names, cells = {"cold": "cold: the kernels are compiled", "warm": "warm: they are there"}, []
    for state, found in grouped(rows, "state"):
        medians = (statistics.median(row[column] for row in found) for column in ("import_s", "first_call_s", "torch_s"))
        cells.append([names[state], *(f"{value:.1f}" if value >= 9.95 else f"{value:.2f}" for value in medians)])
    return markdown(["import", "model_new beyond torch, s", "first call after it, s", "torch itself, s"], cells)


def kernel_of(mangled):
    """A kernel's own name, the last of those that its mangled name spells behind their lengths."""
    name, rest = "", re.sub("^_ZN?", "", mangled)
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length[0])
        name, rest = rest[length.end() : end], rest[end:]
    return name


def registers(rows):
    """Registers of a thread, the least and the most of a kernel's instances that have a body (more than 4); a dash where there is none."""
    kernels, cells = sorted({kernel_of(row["kernel"]) for row in rows}), []
    for architecture, found in grouped(rows, "architecture"):
        of = [{row["registers"] for row in found if kernel_of(row["kernel"]) == kernel and row["registers"] > 4} for kernel in kernels]
        told = [" to ".join(map(str, sorted({min(o), max(o)}))) if o else "–" for o in of]
        cells.append([architecture, *told, sum(row["spilled_bytes"] for row in found)])
    return markdown(["architecture", *kernels, "bytes spilled"], cells)


SCALES = {"ns": (1e3, "µs"), "byte/s": (1e12, "TB/s"), "byte/second": (1e12, "TB/s"), "byte": (1e6, "MB")}  # of ncu's base units


def profile(rows):
    def told(measured):
        scale, unit = SCALES.get(measured[1], (1, measured[1]))
        return f"{measured[0] / scale:.3g} {unit}"

    heads = [(name.replace("_", " "), name) for name in rows[0] if name != "kernel"]
    return columns(rows, {"kernel": "{kernel}", **of_side(told, *heads, absent="n/a")})


def infinite(rows):
    """Of each dtype: finite operands, one Inf where it costs most, nothing but NaN, and the reference, which takes as long for all."""
    head, made = ["N, dtype", "finite, µs", "one Inf, where it costs most, µs", "nothing but NaN, µs", "reference, µs"], []
    for dtype, (*places, nan) in grouped(rows, "dtype"):
        worst = max(places, key=lambda row: row["ours"]["median_us"])
        inf = f"{time_of(worst['ours'])}, {worst['where']}"
        made.append([f"{shape(nan)}, {dtype}", median(nan["finite"]), inf, time_of(nan["ours"]), median(nan["reference"])])
    return markdown(head, made)


def sanitizers(rows):
    """What each tool said of each kernel, and what that took."""
    tools = list(dict.fromkeys(row["tool"] for row in rows))
    cell = {(row["tool"], row["kernel"]): f"{row['result']}, {row['seconds']:.0f} s" for row in rows}
    kernels = dict.fromkeys(row["kernel"] for row in rows)
    return markdown(["tests/sanitize.py", *tools], [[kernel, *(cell.get((tool, kernel), "–") for tool in tools)] for kernel in kernels])


def limits(rows):
    """The parts of a product, and what the ratio would be if packing cost a copy, the products what they cost cuBLAS, and nothing more."""
    heads = [("copy, µs", "copy"), ("float16 product, uniform, µs", "float16_product_uniform"), ("normal, µs", "float16_product_normal")]
    cells = {"N": "{N}", **of_side(median, *heads, ("write, µs", "write"), ("launch, µs", "launch"))}
    wholes = {"ours, uniform": "ours", "copy, then product, uniform": "copy_then_product_uniform", "normal": "copy_then_product_normal"}

    def whole(row, part):
        value = row["reference"]["median_us"] / row[part]["median_us"]
        return f"{median(row[part])} ({quiet_ratio(value, row['reference'], row[part])})"

    return columns(rows, cells | {f"{head}, µs (ratio)": lambda row, part=part: whole(row, part) for head, part in wholes.items()})


# ---- Sentences -------------------------------------------------------------------------------------------------------


def factor(rows, several, forced):
    """Where the factor comes from, at 4096 or the largest N there is; what two GPUs make of one; and the mma kernel there, forced."""
    rows = [row for row in rows if row["dtype"] == "float32"]
    row = next((row for row in rows if row["N"] == 4096), rows[-1])
    dense, useful = 2 * row["N"] ** 3, row["useful_flop"]
    reference, ours = (flop / row[side]["median_us"] / 1e6 for flop, side in ((dense, "reference"), (useful, "ours")))
    several = sorted((row for row in several if row["mode"] == "forward"), key=lambda row: -row["ratio"])
    together = "; ".join(f"{ratio(row['ratio'])} {row['what'].replace(' x ', '×')}" for row in several)
    forced = ", ".join(f"{row['dtype']} {ratio(row['ratio'])}" for row in forced if (row["group"], row["N"]) == ("sizes", 4096))
    triangle, rest = ratio(dense / useful), ratio(row["ratio"] * useful / dense)
    return (
        f"At N = {row['N']} ours is {ratio(row['ratio'])} faster than `tril(matmul)`. {triangle} is the triangle: {useful / 1e9:.3g} GFLOP"
        f" instead of {dense / 1e9:.4g}.\n{rest} is tensor cores, three float16 products for each float32 one: {ours:.3g} TFLOP/s, where"
        f" cuBLAS has {reference:.3g} from CUDA cores.\nTwo GPUs against one ([example](examples/distributed.py)): {together}."
        f" The mma kernel, which is that of other GPUs, forced at 4096: {forced}."
    )


def proof(rows):
    """What check.py said in the end, word for word."""
    told = [f"{check['verdict']:<6} {check['name']}: {check['detail']}" for check in rows[0]["checks"] if check["verdict"] != "note"]
    return "\n".join(["```", *told, *rows[0]["sentence"].replace("; ", ";\n").split("\n"), "```"])


def slower(*records):
    """What is slower than the reference, and who is faster than ours."""
    *measured, compared, cpu = records

    def listed(rows):
        """By problem and dtype, each once: two suites may have it."""
        groups = {}
        for row in (row for row in rows if calm_ratio(row) < 1):
            problem, *gradients = (row["what"] if "what" in row else row["problem"]).split(", ", 1)
            head = ", ".join([problem] * (problem != "lower") + [row["dtype"]] * (row["dtype"] != "float32"))
            why = "; dense: there is no work to leave out" if problem == "transposed_a" else ""
            groups.setdefault(head, {})[f"{shape(row)}{' with gradients' * len(gradients)} ({ratio(calm_ratio(row))}{why})"] = None
        return "; ".join(f"{head} {', '.join(each)}".strip() for head, each in groups.items()) or "nothing"

    ahead = []
    for row in compared:
        faster = [side for side in PEER_NAMES if side in row and row[side]["median_us"] < row["ours"]["median_us"] and side != "reference"]
        times = ", ".join(f"{PEER_NAMES[side]} {median(row[side])}" for side in faster)
        ahead += [f"{with_dtype(row)}: {times} (ours {median(row['ours'])} µs)"] * bool(faster)
    small = "On the CPU all but products of two triangles; and of these, where Python's checks and masks cost more than they save"
    by_whom = "; ".join(ahead) + " ([where ours goes](docs/limits.md#half-precision))" if ahead else "nobody in the table above"
    return f"Slower than the reference on the GPU: {listed(chain(*measured))}. {small}: {listed(cpu)}.\nFaster than ours: {by_whom}."


# A suite, and what a label says of it.
WANTED_SUITES = {
    "forward": [],
    "backward": ["forward and backward"],
    "batch": [],
    "mma": ["mma kernel forced"],
    "problems": [],
    "family": [],
}


def product_label(row, suite):
    """What tells a row of a suite's record from all others of WANTED_SUITES."""
    if suite == "family":
        return f"{row['what']}, {with_dtype(row)}"
    special = [row["problem"]] * (row["problem"] in ("upper", "transposed_a")) + [row["inputs"]] * (row["inputs"] != "uniform")
    return ", ".join([with_dtype(row), *special, *["TF32 allowed"] * (row["group"] == "tf32"), *WANTED_SUITES[suite]])


def wanted(asked, *records):
    """What was asked for, what it is, and why it is less."""
    rows = {product_label(row, suite): row for suite, rows in zip(WANTED_SUITES, records, strict=True) for row in quiet(rows)}
    asked = [(each, rows[each["product"]]["ratio"]) for each in asked if each["product"] in rows]
    cells = [[each["product"], ratio(each["ratio"]), ratio(is_), "met" if is_ >= each["ratio"] else each["why"]] for each, is_ in asked]
    return markdown(["product (float32, if nothing is said)", "wanted", "measured", "met, or what it takes its time for"], cells)


def parts():
    """How long the parts of model_new.py are, by its own headings."""
    lines = (ROOT / "model_new.py").read_text(encoding="utf-8").splitlines()
    heads = {0: "Docstring"} | {number: head[1] for number, line in enumerate(lines) if (head := re.match(r"# -{4} (.*?)[:.] .*-$", line))}
    counts = [f"{end - start:,}" for start, end in zip(heads, [*list(heads)[1:], len(lines)], strict=True)]
    return markdown(["part", "lines"], [*zip(heads.values(), counts, strict=True), ["all", f"{len(lines):,}"]])


HOST = {"host time a call, µs": "{mode} (N = {N})", **of_side(median, ("torch.matmul", "torch.matmul"), ("tril(matmul)", "tril(matmul)"))}
HOST |= of_side(median, ("ours", "tril_matmul")) | {"ours − torch.matmul": "{ours_minus_matmul_us:.1f}"}
HISTORY = {"version": "{version}", "predicted, µs": "{prediction}", "measured, µs": "{measured}"}
HISTORY |= {"what the profiler or the trace said": "{said}"}
PROBLEM = {"inputs, or another problem": lambda row: row["inputs"] if row["problem"] == "lower" else row["problem"]}
NUMBERED = {"KernelBench level 1, problem": lambda row: with_dtype({**row, "shape": PROBLEM_NAMES[row["problem"]]}), "size": shape}
CPU = {"size": lambda row: shape(row) + ", forward and backward" * row.get("problem", "").endswith("dB")}
RUNS = {"N": "{N}", "inputs": "{inputs}", "path": path_of, "runs": "{runs}", "runs that differ": "{different}"}
DEVICES = {"what": "{what}, {mode}", "one GPU, ms": "{one_ms:.2f}", "two, ms": "{together_ms:.2f}", **RATIO}
DEVICES |= of_side("{:.2f}".format, ("of which the all-reduce of dA, ms", "all_reduce_ms")) | of_side(error, ("error: norm", "norm_error"))
SOAK = {"benchmarks/soak.py": "{section}: {what}", "calls": "{calls:,} of {planned:,}", "results": "{comparisons:,}", "wrong": "{wrong}"}
SOAK |= {"worst, of its bound": "{worst_error_of_bound:.3f}", "s": "{seconds:.0f}"}
TABLES = {  # name -> record, columns of it and the group that its rows are of, or what renders them
    "peers": ("peers", peers),
    "peers-errors": ("peers", peers_errors),
    "forward": ("forward", {"N": "{N}", "inputs": "{inputs}", **SPEED, "TFLOP/s": rate, **ERRORS}, "sizes"),
    "hard": ("forward", {"inputs": "{inputs} (N = {N})", "path": path_of, **TIMES}, "hard"),
    "dtypes": ("forward", {"dtype": "{dtype} (N = {N})", **TIMES}, "dtypes"),
    "tf32": ("forward", {"N, TF32 allowed": "{N}", **TIMES}, "tf32"),
    "mma": ("mma", {"N": shape, "dtype": "{dtype}", **PROBLEM, **TIMES}),
    "batch": ("batch", {"batch": with_dtype, **TIMES}),
    "backward": ("backward", {"N, forward and backward": with_dtype, **TIMES}),
    "problems": ("problems", {**NUMBERED, **TIMES}),
    "family": ("family", FAMILY),
    "check": ("check", check),
    "host": ("host", HOST),
    "build": ("build", build),
    "determinism": ("determinism", RUNS),
    "registers": ("registers", registers),
    "limits": ("limits", limits),
    "infinite": ("infinite", infinite),
    "sanitizers": ("sanitizers", sanitizers),
    "soak": ("soak", SOAK),
    "profile": ("profile", profile),
    "history": ("history", HISTORY),
    "devices": ("devices", DEVICES),
    "cpu": ("cpu", {**CPU, **TIMES}),
}
SENTENCES = {  # name -> records, renderer of their rows
    "factor": (("peers", "devices", "mma"), factor),
    "proof": (("check",), proof),
    "parts": ((), parts),
    "wanted": (("wanted", *WANTED_SUITES), wanted),
    "slower": (("forward", "problems", "backward", "batch", "family", "peers", "cpu"), slower),
}


def read_record(results, suite):
    """A record that a table may be made from. Raises TableError."""
    path, remedy = results / f"{suite}.json", f"run: python benchmarks/benchmark.py --suite {suite}"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError) as wrong:
        raise TableError(f"{path} is {'missing' if isinstance(wrong, OSError) else f'no JSON ({wrong})'}; {remedy}") from None
    if not record.get("complete"):
        raise TableError(f"{path} was cut short; {remedy}")
    marked = [row for row in record["rows"] if row.get("within_contract") is False or row.get("different")]
    if len(record["failures"]) > len(marked):  # a marked row is a failure that its table shows; the others left no row to show
        raise TableError(f"{path} lacks rows that failed ({'; '.join(record['failures'])}); {remedy}")
    return record


VERSIONS = {"torch": "torch", "cuda": "CUDA", "driver": "driver", "triton": "Triton", "nvcc": "nvcc"}


def table(name, results):
    """The text between two markers. Raises TableError."""
    if name not in TABLES and name not in SENTENCES:
        raise TableError(f"there is no table '{name}'; accepted: {', '.join([*TABLES, *SENTENCES])}")
    suites, render, *group = SENTENCES[name] if name in SENTENCES else ((TABLES[name][0],), *TABLES[name][1:])
    records = [read_record(results, suite) for suite in suites]
    rows = [record["rows"] for record in records]
    rendered = all(rows) and (render(*rows) if callable(render) else columns(*rows, render, *group))
    if not rendered:
        suite = suites[0]
        raise TableError(f"{results / suite}.json has no rows for the table '{name}'; run: python benchmarks/benchmark.py --suite {suite}")
    if name in SENTENCES:
        return rendered
    record, suite = records[0], suites[0]
    versions = [f"{told} {record['versions'][key]}" for key, told in VERSIONS.items() if record["versions"].get(key)]
    source = f"from benchmarks/results/{suite}.json" + ", rounded" * ("rounded" in record)  # which says why
    return rendered + "\n\n" + ", ".join([record["device"], *versions, record["date"], f"commit {record['commit']}", source]) + "."


# ---- Files -----------------------------------------------------------------------------------------------------------

MARKER = re.compile(r"\s*<!-- (begin|end): (\S+) -->\s*")
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("results", "kernel", "limits", "judge", "history"))]


def fill(text, results):
    """The text with every table between its markers made anew. Raises TableError."""
    lines, name = [], None
    for number, line in enumerate(text.split("\n"), 1):
        if not (marker := MARKER.fullmatch(line)):
            lines += [] if name else [line]
            continue
        kind, marked = marker.groups()
        if name != (None if kind == "begin" else marked):
            raise TableError(f"line {number} {kind}s the table '{marked}', but " + (f"'{name}' is open" if name else "none is open"))
        name = marked if kind == "begin" else None
        lines += [line, table(name, results)] if name else [line]
    if name:
        raise TableError(f"the table '{name}' has no <!-- end: {name} -->")
    return "\n".join(lines)


def bring_up_to_date(paths, made, script, check):
    """Makes files what they should be, or with `check` only says whether they are. `made` gives what writes a path, or None where it is as
    it should be. Returns 1 if something is wrong."""
    wrong = 0
    for path in paths:
        try:
            write = made(path)
            if write and check:
                raise TableError(f"not up to date; run: python benchmarks/{script}")
            if write:
                write()
            print(f"{path}: {'written' if write else 'up to date'}")
        except (TableError, FileNotFoundError) as problem:
            print(f"{path}: {problem}", file=sys.stderr)
            wrong = 1
    return wrong


def arguments_of(document, arguments, *option, **described):
    parser = argparse.ArgumentParser(description=document.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is not up to date")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR", help="where the records lie")
    parser.add_argument(*option, type=Path, **described)
    return parser, parser.parse_args(arguments)


def main(arguments=None):
    _, given = arguments_of(__doc__, arguments, "--files", nargs="+", default=DOCUMENTS, metavar="FILE")

    def made(path):
        text = path.read_text(encoding="utf-8")
        filled = fill(text, given.results)
        return None if filled == text else lambda: path.write_text(filled, encoding="utf-8")

    return bring_up_to_date(given.files, made, "tables.py", given.check)


if __name__ == "__main__":
    sys.exit(main())
