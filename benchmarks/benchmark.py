"""Measures times and errors of model_new.py and of torch. Writes one record, a JSON file, per suite.

    python benchmarks/benchmark.py                       runs the default suites of this machine
    python benchmarks/benchmark.py --suite forward host  runs only these suites
    python benchmarks/benchmark.py --against before.py --out /tmp/turns --suite forward family backward batch problems
                                                         times an older model_new.py in turns with this one

After a run, tables.py writes the documents' tables from the records, and figures.py draws the figures.

If torch sees a CUDA GPU, the default suites are `forward`, `problems`, `backward`, `batch`, `mma`, `family`, `host`, `determinism` and
`build`. Without a GPU the default is `cpu`. Any other suite runs only if it is named. The suites `cpu` and `nan` run on the CPU, and
`registers` needs nvcc but no GPU. `mma` measures the mma kernel, which serves every GPU from Ampere on. It runs in a process of its own,
with TRIL_MATMUL_PATH=mma. measure_products lists the cases of `forward`, `problems`, `backward`, `batch`, `mma`, `peers` and `cpu`. For
any other suite NAME, the docstring of suite_NAME says what it measures.

Most rows of a record have the times of several calls. Each call is a side of the row: `reference` (torch's own functions), `ours`, and in
some suites others, such as cuBLAS. The time of a side is the time between two events around one call. On a GPU these are CUDA
events. There 256 MB are written before each call, so that the L2 holds none of the input. The GPU sleeps while the host launches the calls,
so that the host's time does not count. The sides take turns, so that they run at the same GPU clocks. torch.utils.benchmark and
triton.testing would time one side after the other. The order of the sides is drawn at random in each round. In a fixed order, the times of
calls of less than 20 µs were off by up to 0.6 µs, whatever their code was (H200). If other processes disturb a row, it is measured again,
at most twice.

Errors are measured against the product in float64, or against exact sums if the product itself is float64. A product with more than 8192
rows or columns is compared only where 256 random rows meet 256 random columns. Gradients and inverses are always compared in full. A row
fails if our worst error exceeds its limit. docs/results.md explains how to read the tables.

Exit status: 0, or 1 if anything failed, or 2 for bad arguments.
"""

import argparse
import contextlib
import csv
import functools
import hashlib
import importlib.util
import itertools
import json
import math
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import timeit
import traceback
from pathlib import Path

import torch
from torch.utils import collect_env

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT))  # check.py lies there

import check  # noqa: E402
from judge import measures  # noqa: E402

# This many bytes are written before each call to empty the L2. They are five times the L2 of an H200. KernelBench writes as many.
FLUSH_BYTES = 256 << 20
MIN_TRIALS = 5
# A row is measured at most this many times. It is measured again if its times vary so much that other processes must have been at work.
MOST_ATTEMPTS = 3
ROW_SECONDS = 1.0  # a row gets as many trials as fit into this time, but at least MIN_TRIALS and at most --trials
WARM_SECONDS = 0.1  # on a GPU, calls run for this long before a row is measured, because an idle GPU lowers its clock
FULL_ERROR_EDGE = 8192  # products with at most this many rows and columns are compared in every element
SAMPLED_LINES = 256  # larger products are compared only where this many random rows meet this many random columns

HALF_SIZES = (64, 256, 512, 1000, 1024, 2048, 3000, 4096, 8192)
# The runs of check.py in the suite `check`: (problem, dtype, TRIL_MATMUL_PATH, further options of check.py)
CHECKS = [(problem, "float32", "auto") for problem in ("lower", "upper", "transposed_a")]
CHECKS += [("lower", "float32", "auto", "--tf32"), ("lower", "float16", "auto"), ("lower", "float32", "mma")]
BATCHES = ((64, 512), (16, 1024), (8, 2048), (1024, 128))
TRANSPOSED_A_SHAPES = ((8192, 2048, 4096), (4096, 4096, 4096), (1000, 3000, 5000))  # K, M, N
HARD_INPUTS = ("lognormal, sigma 3", "rows of A over 16 decades", "columns of A over 16")  # names of distributions in judge/measures.py
# The runs of examples/distributed.py: (N of the product whose columns are spread over the GPUs, products in the batch, N of the batch)
DEVICE_RUNS = ((32768, 64, 2048), (16384, 256, 2048), (8192, 4096, 512))
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
# With --against, the end of a suite lists the rows in which ours takes longer than the older file by more than the share SLOWER. It names
# each of these rows by the entries in LABELS.
SLOWER, LABELS = 0.02, ("group", "what", "problem", "shape", "dtype", "inputs")
# The host makes this many calls in a row without waiting for the GPU. They are few enough that the queue of launches never fills, so the
# host never has to wait for room in it.
HOST_CALLS = 100
WARM_IMPORTS = 3
positive = check.number(int, 1, 10**9)


# ---- Errors, inputs and the clock -------------------------------------------------------------------------------------


@torch.no_grad()
def product_errors(X, Y, results, keep=None):
    """Returns [(normwise error, worst componentwise error)], with one pair for each of the results, and a phrase that says which elements
    were compared.

    The results are of the product X @ Y, where X is (..., M, K) and Y is (..., K, N). If Y is None, the results are inverses of X, which is
    lower triangular. `keep` is a function such as torch.tril, and only the elements that it keeps are compared. Without `keep`, an inverse
    is compared in its lower triangle. A product is then compared in all elements or, if it is large, in a random sample of them. A
    componentwise error is relative to |X| |Y|, or to |C| |X| |C| for the inverse C of X. Where this magnitude is zero, any error is
    infinite. The error of a NaN is NaN.
    """
    compared = "all elements, against exact sums" if X.dtype == torch.float64 else "all elements"
    if keep is None and Y is not None and max(X.shape[-2], Y.shape[-1]) > FULL_ERROR_EDGE:
        i, j = (torch.randperm(lines, device=X.device)[:SAMPLED_LINES] for lines in (X.shape[-2], Y.shape[-1]))
        X, Y, results = X[..., i, :], Y[..., j], [C[..., i, :][..., j] for C in results]
        compared = f"{SAMPLED_LINES} random rows and columns"
    keep = keep or (torch.tril if Y is None else torch.as_tensor)  # torch.as_tensor leaves a tensor as it is
    truth = measures.Truth(X, Y, keep, inverse=Y is None)
    norm, errors = keep(truth.high).norm().item(), []
    for C in results:
        difference = keep(C.double() - truth.high - truth.low).abs_()
        worst = torch.where(difference == 0, 0.0, difference / truth.magnitude).max().item() if C.numel() else 0.0
        errors.append((difference.norm().item() / norm if norm else float(difference.any()), worst))
    return errors, compared


def error_limit(dtype, terms, reference_worst, tf32=False, inverse=False):
    """Returns the largest componentwise error that a result may have. This is the larger of two numbers: the judge's first bound (see
    measures.allowed), and twice the reference's worst error. A 16-bit result may have one rounding more."""
    rounding = torch.finfo(dtype).eps / 2 if dtype.itemsize == 2 else 0.0
    return max(measures.allowed(dtype, terms, tf32, inverse)[0], 2 * reference_worst) + rounding


class Bench:
    """Holds what the suites share: the files under test, the device, the clock and the arguments."""

    def __init__(self, device, solution=ROOT / "model_new.py", trials=30, seed=0, sizes=None, against=None):
        self.device, self.solution_file, self.trials, self.seed, self.sizes = device, Path(solution), trials, seed, sizes
        self.against_file = against
        self.on_gpu = device != "cpu"
        self.synchronize = torch.cuda.synchronize if self.on_gpu else torch.cpu.synchronize
        # Cases that measure_products, suite_family and suite_infinite measure at a single N have this N.
        self.single_size = 4096 if sizes is None or 4096 in sizes else max(sizes)

    reference = functools.cached_property(lambda self: load(ROOT / "reference_model.py"))
    against = functools.cached_property(lambda self: self.against_file and load(self.against_file))
    peers = functools.cached_property(lambda self: load(ROOT / "benchmarks" / "peers.py"))
    _flushed = functools.cached_property(lambda self: torch.empty(self.on_gpu * FLUSH_BYTES // 4, dtype=torch.int32, device=self.device))

    @functools.cached_property
    def solution(self):
        # Calls of either file that go through torch's dispatcher run the kernels of the file that was loaded last, because torch has one
        # operator per name. So the older file is loaded first.
        _ = self.against
        return load(self.solution_file)

    def inputs(self, problem, a_shape, b_shape, dtype=torch.float32, inputs="uniform"):
        """Returns A and B, drawn from one of the judge's distributions, which `inputs` names. Triangular matrices hold zeros outside their
        triangle, because the reference reads whole matrices."""
        draw = measures.Draw(self.seed, inputs, torch.device(self.device))
        return [measures.PRODUCTS[problem].keep(V.to(dtype)) for V in measures.inputs_of(inputs, draw, dtype, a_shape, b_shape)]

    def sides(self, *operands, problem="lower"):
        """Returns {"reference": call, "ours": call}. With --against the dict also has "before", the call of the older file. Each call takes
        no arguments and multiplies these operands."""
        prefix = measures.PRODUCTS[problem].prefix
        models = {"reference": getattr(self.reference, prefix + "Model"), "ours": getattr(self.solution, prefix + "ModelNew")}
        models |= {"before": getattr(self.against, prefix + "ModelNew")} if self.against else {}
        return {side: functools.partial(model(), *operands) for side, model in models.items()}

    def further_sides(self, prepare, *operands):
        """Returns {name: call} for further sides of a row, and {name: reason} for sides that are unavailable. `prepare` maps the name of a
        side to a function that takes the operands and returns the call."""
        calls, skipped = {}, {}
        for name, make_call in prepare.items():
            try:
                calls[name] = make_call(*operands)
            except self.peers.Unavailable as reason:
                skipped[name] = str(reason)
        return calls, skipped

    def explain(self, A, B, problem="lower"):
        """Returns a dict whose "path" names the kernel that computes this product. On a GPU it is what the solution's `explain` returns."""
        return self.solution.explain(A, B, problem=problem) if A.is_cuda else {"path": "cpu"}

    def alternate(self, calls):
        """Times the named calls in turns. If other processes disturbed one of the calls, all calls are timed again, at most twice. Returns
        a dict with the spread of each call's times in the last attempt, under the call's name, and the numbers of trials and attempts."""
        moment = functools.partial(torch.cuda.Event, enable_timing=True) if self.on_gpu else measures.Moment

        order = random.Random(self.seed)

        def rounds(number, sleep_seconds=0.0):
            marks = [(name, moment(), moment()) for _ in range(number) for name in order.sample([*calls], len(calls))]
            if sleep_seconds and self.on_gpu:
                # The GPU sleeps for about `sleep_seconds`, given in cycles, while the host launches all calls. Without this sleep the GPU
                # would wait for the host between two events, and the time between them would include the host's time.
                torch.cuda._sleep(int(2e9 * sleep_seconds))
            launch_seconds = time.perf_counter()
            for name, start, end in marks:
                self._flushed.fill_(1)  # so that the L2 holds none of the input
                start.record()
                calls[name]()
                end.record()
            launch_seconds = time.perf_counter() - launch_seconds
            self.synchronize()
            return marks, launch_seconds

        # This round does not count. It loads kernels, lets cuBLAS choose its algorithm and fills the allocator's cache. A process's first
        # event also takes longer than later events.
        rounds(1)
        start = time.perf_counter()
        _, launch_seconds = rounds(1)
        trials = max(MIN_TRIALS, min(self.trials, int(ROW_SECONDS / (time.perf_counter() - start))))
        while self.on_gpu and time.perf_counter() < start + WARM_SECONDS:
            rounds(1)
        for attempt in itertools.count(1):
            marks, _ = rounds(trials, launch_seconds * trials)
            times = {name: measures.spread([start.elapsed_time(end) * 1e3 for side, start, end in marks if side == name]) for name in calls}
            if attempt == MOST_ATTEMPTS or all(measures.undisturbed(spread) == spread["median_us"] for spread in times.values()):
                return times | {"trials": trials, "attempts": attempt}


def load(path):
    """Imports a file by its path, under the name that `import` would give it."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- Records ---------------------------------------------------------------------------------------------------------


def environment(bench, commit=None):
    """Returns the entries of a record that describe the machine, the versions, the solution and the arguments. If `commit` is None, the
    entry "commit" has the commit of the checkout, and says if a file that decides the numbers has uncommitted changes."""
    # run_command(command) returns the output of a shell command, or None if the command failed.
    gpu, run_command = bench.on_gpu, functools.partial(collect_env.run_and_read_all, collect_env.run)
    git = f"git -C {shlex.quote(str(ROOT))}"
    commit_hash = run_command(f"{git} rev-parse --short=12 HEAD") or "unknown"
    deciding_files = "model_new.py reference_model.py check.py judge examples/distributed.py 'benchmarks/*.py' 'benchmarks/*.cuh'"
    changed = run_command(f"{git} status --porcelain -- {deciding_files}")
    cpu = re.search(r"Model name:\s*(.+)", collect_env.get_cpu_info(collect_env.run))
    driver, python = collect_env.get_nvidia_driver_version(collect_env.run) if gpu else None, sys.version.split()[0]
    return {
        "device": torch.cuda.get_device_name() if gpu else f"{cpu[1] if cpu else os.uname().machine}, {torch.get_num_threads()} threads",
        "capability": ".".join(map(str, torch.cuda.get_device_capability())) if gpu else None,
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda if gpu else None, "driver": driver, "python": python},
        "commit": commit or commit_hash + (" with changes" if changed else ""),
        "solution_sha256": hashlib.sha256(bench.solution_file.read_bytes()).hexdigest()[:16],
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "trials": bench.trials,
        "seed": bench.seed,
    }


class Record:
    """Holds the rows of one suite. Each row is printed and written to the file as soon as it is measured. An interrupted run therefore
    leaves the rows that it has measured."""

    NOT_PRINTED = {"group", "tf32", "fallback", "compared", "trials", "useful_flop", "within_contract"}

    def __init__(self, suite, environment, folder):
        self.path = Path(folder) / f"{suite}.json"
        self.content = {"suite": suite, **environment, "complete": False, "failures": [], "rows": []}

    @contextlib.contextmanager
    def row(self, label):
        """Opens a context in which one row is measured. An exception fails only this row, and the run goes on. The context yields a
        function fail(message), which reports any other failure of the row."""
        try:
            yield lambda message: self.fail(f"{label}: {message}")
        except Exception as error:
            traceback.print_exc(limit=-4)  # prints only the four innermost calls
            self.fail(f"{label}: {type(error).__name__}: {error}")

    def fail(self, message):
        print(f"FAILED  {message}", file=sys.stderr, flush=True)
        self.content["failures"].append(message)
        self.write()

    def add(self, row, line=None):
        self.content["rows"].append(row)
        print(line or ", ".join(f"{key} {printed(value)}" for key, value in row.items() if key not in self.NOT_PRINTED), flush=True)
        self.write()

    def add_timed(self, bench, row, calls, errors=(), limit=None, fail=None):
        """Times the sides of a row in turns and adds the row, with the times of each side and the ratio of the reference's time to ours.
        `errors` has the errors of the first sides, in the order of `calls`. The row fails if our worst error exceeds `limit`."""
        row |= bench.alternate(calls)
        for side, (norm, worst) in itertools.zip_longest(calls, errors, fillvalue=(None, None)):
            row[side] |= {"norm_error": norm, "worst_error": worst}
        row["ratio"], worst = row["reference"]["median_us"] / row["ours"]["median_us"], row["ours"]["worst_error"]
        row |= {"change": row["ours"]["median_us"] / row["before"]["median_us"] - 1} if "before" in row else {}
        row |= {} if limit is None else {"within_contract": worst <= limit}
        self.add(row)
        if not row.get("within_contract", True):  # an error of NaN also fails, because it is not <= limit
            fail(f"worst error {worst:.2e}, but at most {limit:.2e} may be")

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps(self.content, indent=1) + "\n")
        unfinished.replace(self.path)  # so that the file is a whole record at any time


def earlier_rows(path, description):
    """Returns the rows that an earlier run left at `path`, without rows of another solution or of another kind of device."""
    rows = json.loads(path.read_text())["rows"] if path.is_file() else []
    return [row for row in rows if all(row[key] == description[key] for key in ("solution_sha256", "device"))]


def printed(value):
    """Returns a row's value as text. The text of a side has the median and the 10th and 90th percentile. If the side has errors, the
    normwise and the worst error follow. An example is '2728.1 (2720.0 to 2741.3) us 1.2e-07 3.0e-07'."""
    if isinstance(value, dict) and "median_us" in value:
        value = {name: number for name, number in value.items() if isinstance(number, float)}
        median, low, high, _, *errors = value.values()
        return " ".join([f"{median:.1f} ({low:.1f} to {high:.1f}) us", *(f"{error:.1e}" for error in errors)])
    return " ".join(map(printed, value)) if isinstance(value, list) else f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- Suites ----------------------------------------------------------------------------------------------------------


def measure(bench, record, group, problem, dims, dtype, inputs):
    """Measures one row. If `problem` is a name such as `lower`, the product is measured. If it is a name such as `lower, dA, dB`, the
    product and both gradients are timed together, and the errors are those of the gradients. dims is (N,), (batch, N), or (K, M, N) for
    A.T @ B."""
    row, (kind, *gradients) = {"group": group, "problem": problem}, problem.split(", ", 1)
    *shapes, (*_, M, N) = measures.PRODUCTS[kind].shapes(dims)
    K, batch = shapes[1][-2], dims[0] if len(dims) == 2 else 1
    row["shape"] = str(N) if len(dims) == 1 else ", ".join(" x ".join(map(str, shape)) for shape in shapes[: len(dims) - 1])
    row |= {"N": N, "dtype": dtype, "inputs": inputs, "tf32": group == "tf32"}
    label, dtype = f"{problem} {row['shape']} {dtype} {inputs}", check.DTYPES[dtype]
    tf32_context = bench.peers.tf32_allowed() if group == "tf32" else contextlib.nullcontext()  # applies to all sides
    with record.row(label) as fail, torch.set_grad_enabled(bool(gradients)), tf32_context:
        A, B = bench.inputs(kind, *shapes, dtype, inputs)
        calls = bench.sides(A, B, problem=kind)
        chosen, forced = bench.explain(A, B, kind), os.environ.get("TRIL_MATMUL_PATH", "auto")
        if A.is_cuda and forced not in ("auto", chosen.get("path")):
            raise RuntimeError(f"the {forced} path was asked for, but the solution says {chosen}")
        row |= {name: chosen.get(name) for name in ("path", "fallback", "outliers")}
        if group == "peers":
            del row["tf32"]  # in this group `tf32` is the name of a side
            further_calls, row["skipped"] = bench.further_sides(bench.peers.PEERS, A, B)
            calls |= further_calls
        multiply_adds = K * M * N if kind == "transposed_a" else N * (N + 1) * (N + 2) // 6
        row["useful_flop"] = 2 * batch * multiply_adds * (3 if gradients else 1)  # the operations that the mathematics needs
        if gradients:
            G = torch.rand(A.shape, device=bench.device).to(dtype)  # G is not zero above the diagonal, where no side may use it
            A.requires_grad_(), B.requires_grad_()
            calls = {side: lambda call=call: torch.autograd.grad(call(), (A, B), G) for side, call in calls.items()}
            (dA, dB), lower_G = zip(*(call() for call in calls.values()), strict=True), G.tril()
            gradient_errors = [product_errors(*product, torch.tril)[0] for product in ((lower_G, B.mT, dA), (A.mT, lower_G, dB))]
            errors, row["compared"] = torch.tensor(gradient_errors, dtype=torch.float64).amax(0).tolist(), "all elements of both gradients"
            del dA, dB, lower_G
        else:
            errors, row["compared"] = product_errors(*measures.PRODUCTS[kind].factors[0](A, B), [call() for call in calls.values()])
        limit = error_limit(dtype, K, errors[0][1], group == "tf32")
        if group == "peers":
            # The other sides have wider limits than ours. TF32 rounds operands to 11 bits. All sides but TF32 and ours get the judge's
            # second bound, which allows for plain float32 sums. A 16-bit result also gets 16 roundings, because `blocked` rounds per block.
            peer_limit = measures.allowed(dtype, N)[1] + (16 * torch.finfo(dtype).eps / 2 if dtype.itemsize == 2 else 0.0)
            for side, (_, worst) in zip(calls, errors, strict=True):
                if not worst <= (side_limit := {"tf32": 2.0**-9, "ours": limit}.get(side, peer_limit)):
                    raise RuntimeError(f"nothing is timed, because of {side}: worst error {worst:.2e}, above {side_limit:.2e}")
        record.add_timed(bench, row, calls, errors, limit, fail)


def measure_products(suite, bench, record):
    """Runs a suite whose rows are products. For `mma`, TRIL_MATMUL_PATH must be mma before model_new.py is imported (see main). `peers`
    compares ours with what a user could pick instead, and times a row only if the results of all sides are right."""
    if suite == "peers" and bench.peers.triton is not None:
        record.content["versions"]["triton"] = bench.peers.triton.__version__
    half_dtypes, gradients = ["float16", "bfloat16"], {"problem": ["lower, dA, dB"]}
    selected, single_sizes, is_default, transposed = bench.sizes, [bench.single_size], bench.sizes is None, {"problem": ["transposed_a"]}
    for name, group, sizes, variations in (  # (suite, group, sizes, what else varies); a size is N, or the dims of measure()
        ("forward", "sizes", selected or (64, 128, 256, 512, 1000, 1024, 2048, 4000, 4096, 8192, 16384), {"inputs": ["uniform", "normal"]}),
        ("forward", "hard", single_sizes, {"inputs": HARD_INPUTS}),
        ("forward", "dtypes", single_sizes, {"dtype": ["float64"]}),
        ("forward", "dtypes", selected or HALF_SIZES, {"dtype": half_dtypes}),
        ("forward", "tf32", selected or (512, 1024, 2048, 4096, 8192), {}),
        ("problems", "problems", single_sizes, {"problem": ["lower", "upper"]}),
        ("problems", "problems", TRANSPOSED_A_SHAPES, transposed),
        ("problems", "problems", TRANSPOSED_A_SHAPES[:1], transposed | {"dtype": half_dtypes}),
        ("backward", "backward", selected or (1024, 2048, 4096), gradients),
        ("backward", "backward", single_sizes, gradients | {"dtype": half_dtypes}),
        ("backward", "backward", [(16, 1024), (8, 2048)] * is_default, gradients),
        ("batch", "batch", BATCHES, {"dtype": ["float32", *half_dtypes]}),
        ("peers", "peers", selected or (512, 1024, 2048, 4096, 8192, 16384), {}),
        ("peers", "peers", single_sizes, {"dtype": [*half_dtypes, "float64"]}),
        ("mma", "sizes", selected or HALF_SIZES, {"dtype": ["float32", "float64", *half_dtypes]}),
        ("mma", "hard", single_sizes, {"inputs": HARD_INPUTS}),
        ("mma", "problems", single_sizes, {"problem": ["upper"]}),
        ("mma", "problems", TRANSPOSED_A_SHAPES[:1], transposed),
        ("cpu", "cpu", selected or (1, 64, 128, 256, 512, 1024, 2048), {}),
        ("cpu", "cpu", [(1024, 128), (4096, 16), (64, 256)] * is_default, {}),
        ("cpu", "cpu", selected or (16, 64, 256, 1024), gradients),
    ):
        axes = {"dtype": ["float32"], "problem": ["lower"], "size": sizes, "inputs": ["uniform"]} | variations
        for dtype, problem, size, inputs in itertools.product(*axes.values()):
            if name == suite:
                dims = size if isinstance(size, tuple) else (size,)
                measure(bench, record, group, problem, dims, dtype, inputs)


def suite_family(bench, record):
    """Measures L X, the symmetric products X X^T and L L^T, the product L U, and the inverse of L. The reference of the products is
    torch.matmul. The reference of the inverse is torch.linalg.solve_triangular."""
    draw, floats, is_default = measures.Draw(bench.seed, "uniform", torch.device(bench.device)), ["float32", "float16"], bench.sizes is None
    squares, single_shape = [(N, N) for N in bench.sizes or (512, 1024, 2048, 4096)], [(bench.single_size,) * 2]
    small = [(4096, 64, 64), (1024, 128, 128), (256, 256, 256)] if is_default else [(16, 40, 40)]
    peers = bench.peers
    # Maps the name of a case to (number of drawn matrices, function of these that returns X and Y, name of our function, its options). The
    # result of a case is X Y, or the inverse of X if Y is None.
    family = {
        "X X^T": (1, lambda A: (A, A.mT), "gram", {}),
        "L X": (2, lambda A, B: (A.tril(), B), "triangular_matmul", {}),
        "L L^T": (1, lambda A: ((L := A.tril()), L.mT), "gram", {"structure": "lower"}),
        "L U": (2, lambda A, B: (A.tril(), B.triu()), "lu_matmul", {}),
        "L^-1": (1, lambda A: (A.tril() / A.shape[-1] + torch.eye(A.shape[-1], device=A.device), None), "triangular_inverse", {}),
    }
    for what, shapes, dtypes, further in (  # further: {side: a function of X and Y that returns the side's call}
        ("X X^T", squares + [(4096, 1024), (1024, 4096)] * is_default, ["float32", "bfloat16"], {"cublas": lambda X, Y: peers.ssyrk(X)}),
        ("L X", squares, floats, {"cublas": peers.strmm}),
        ("L X", small[:2] * is_default, floats[:1], {"copy": lambda X, Y: Y.clone}),
        ("L L^T", single_shape, floats, {}),
        ("L U", single_shape, floats, {}),
        ("L^-1", small, floats[:1], {}),
    ):
        number, factors, function, options = family[what]
        for dtype, shape in itertools.product(dtypes, shapes):
            row = {"what": what, "shape": " x ".join(map(str, shape)), "dtype": dtype}
            with record.row(" ".join(row.values())) as fail:
                drawn = [draw.uniform(*shape).to(check.DTYPES[dtype]) for _ in range(number)]
                X, Y = factors(*drawn)
                reference_call = functools.partial(torch.matmul, X, Y)
                if Y is None:
                    identity = torch.eye(shape[-1], device=bench.device).expand(shape)
                    reference_call, drawn = functools.partial(torch.linalg.solve_triangular, X, identity, upper=False), [X]
                calls = {"reference": reference_call, "ours": functools.partial(getattr(bench.solution, function), *drawn, **options)}
                # Inverses have no side `before`. They always go through torch's dispatcher, which has one operator per name. So the older
                # file's function would run the kernels of bench.solution, which is loaded last.
                if bench.against and Y is not None:
                    calls["before"] = functools.partial(getattr(bench.against, function), *drawn, **options)
                calls |= bench.further_sides(further, X, Y)[0]
                results = {side: call() for side, call in calls.items() if side != "copy"}
                if what == "X X^T" and "cublas" in results:  # cuBLAS writes only the lower half
                    results["cublas"] += results["cublas"].tril(-1).mT
                errors, row["compared"] = product_errors(X, Y, results.values())
                limit = error_limit(X.dtype, X.shape[-1], errors[0][1], inverse=Y is None)
                record.add_timed(bench, row, calls, errors, limit, fail)


def suite_limits(bench, record):
    """Times a float32 product in turns with operations that stand for its parts.

    Float32 accuracy takes three float16 products of N^3 / 6 multiply-adds each, together N^3 / 2. A dense float16 product of N x N/2 by
    N/2 x N also has N^3 / 2 multiply-adds, and stands for the three products. The two operands are triangles, which have about N x N
    float32 elements together. Packing reads these elements and writes them as pairs of float16, so a copy of N x N float32 elements stands
    for packing. `copy_then_product` is the copy and the float16 product, one after the other. `write` fills N x N elements, as many as C
    has. `launch` fills a single element. None of these operations handles triangles, so none loses time at a diagonal.
    """
    for N in bench.sizes or (1024, 2048, 4096, 8192):
        with record.row(f"limits {N}"):
            A, B = bench.inputs("lower", (N, N), (N, N))
            packed, word = torch.empty_like(A), torch.empty(1, device=bench.device)
            parts = bench.sides(A, B) | {"copy": functools.partial(packed.copy_, A), "write": packed.zero_, "launch": word.zero_}
            for inputs in ("uniform", "normal"):
                # Operands of transposed_a are dense and may have any sizes, so this draws two dense matrices
                halves = bench.inputs("transposed_a", (N, N // 2), (N // 2, N), torch.float16, inputs)
                parts[f"float16_product_{inputs}"] = product = functools.partial(torch.matmul, *halves)
                parts[f"copy_then_product_{inputs}"] = lambda copy=parts["copy"], product=product: (copy(), product())
            record.add({"N": N, **bench.alternate(parts)})


def suite_infinite(bench, record):
    """Measures the time of a product with one Inf, for several places of the Inf, and of a product whose operands are all NaN. Each of
    these calls takes turns with the reference and with our product of finite operands."""
    N, ones = bench.single_size, torch.ones(bench.single_size, bench.single_size, device=bench.device).tril()
    places = [(0, N - 1, 0), (0, N - 1, N - 1), (0, N // 2, N // 4), (1, 0, 0), (1, N // 2, 0), (1, N // 2, N // 2), None]
    for dtype, place in itertools.product(("float16", "bfloat16", "float32", "float64"), places):
        where = f"{'AB'[place[0]]}[{place[1]}, {place[2]}]" if place else "nothing but NaN"
        with record.row(f"infinite {dtype} {where}"):
            finite = bench.inputs("lower", (N, N), (N, N), check.DTYPES[dtype])
            A, B = operands = [V.clone() for V in finite]
            if place:
                operands[place[0]][place[1:]] = math.inf
            else:
                A[:], B[:] = math.nan, math.nan
            a, b = ((~V.isfinite()).float().tril() for V in operands)
            calls = bench.sides(A, B) | {"finite": bench.sides(*finite)["ours"]}
            if not torch.equal(calls["ours"]().isfinite(), a @ ones + ones @ b == 0):
                raise RuntimeError("nothing is timed: NaN or Inf stand where the sum has none, or are missing where it has one")
            record.add_timed(bench, {"N": N, "dtype": dtype, "where": where}, calls)


SPECIAL_PLACES = {"one": (-1, 0), "row": (-1, slice(None)), "column": (slice(None), 0), "all": (slice(None), slice(None))}
SPECIAL_SHAPES = ((256,), (1024,), (2048,), (4096,), (64, 64), (64, 256), (8, 512))  # (N,) or (batch, N)
SPECIAL_LARGEST = 2048  # up to this N all functions are measured; above it only two, because rows of the other functions may take minutes
SPECIAL_SECONDS = 3.0  # after this time no new round of a row begins, unless the row has fewer rounds than SPECIAL_ROUNDS
SPECIAL_ROUNDS = 3  # every row has at least this many rounds, however long they take


def suite_nan(bench, record):
    """Measures what NaN and Inf cost on a CPU, depending on their place.

    A row has the shortest time of a call with finite operands. It also has a ratio for each value (NaN or Inf) and each place. The ratio is
    the shortest time with this value at this place, divided by the time with finite operands. SPECIAL_PLACES has the places. The row's
    entry `function`, such as "triangular_matmul, in X", names the operand with the NaN or Inf. An inverse has only one. In a batch only the
    first matrix has them, except for the place "batch": there all elements of all matrices are NaN or Inf. All calls take turns on one
    thread, because other processes disturb a single thread least."""
    solution, grad = bench.solution, torch.autograd.grad

    def gradients(A, B, G):
        return grad(solution.tril_matmul(A, B), (A, B), G)

    def second_gradients(A, B, G):
        first = grad(solution.tril_matmul(A, B), (A, B), G, create_graph=True)
        return grad(first, (A, B, G), (B.detach(), A.detach()))

    functions = {
        "tril_matmul, in A": (solution.tril_matmul, 2, 0),
        "triangular_matmul, in X": (solution.triangular_matmul, 2, 1),
        "gradients, in G": (gradients, 3, 2),
        "second gradients, in A": (second_gradients, 3, 0),
        "triangular_inverse": (solution.triangular_inverse, 1, 0),
    }
    shapes = SPECIAL_SHAPES
    if bench.sizes:  # the shapes with these sizes or, if no shape has one of them, single matrices of these sizes
        shapes = [shape for shape in SPECIAL_SHAPES if shape[-1] in bench.sizes] or [(N,) for N in bench.sizes]
    for shape, (function, (call, count, operand)) in itertools.product(shapes, functions.items()):
        if shape[-1] > SPECIAL_LARGEST and function not in ("tril_matmul, in A", "triangular_inverse"):
            continue
        shape = (*shape, shape[-1])
        label = "x".join(map(str, shape[:-1]))
        with record.row(f"nan {function} {label}"), torch.enable_grad():
            draw = torch.Generator().manual_seed(bench.seed)
            finite = [torch.rand(shape, generator=draw).sub_(0.5).div_(shape[-1] ** 0.5).add_(torch.eye(shape[-1])) for _ in range(count)]
            calls = {"finite": finite}
            for value in ("nan", "inf"):
                for place, index in SPECIAL_PLACES.items():
                    calls[f"{place} {value}"] = operands = list(finite)
                    operands[operand] = finite[operand].clone()
                    first = operands[operand].flatten(0, -3)[0] if len(shape) > 2 else operands[operand]
                    first[index] = float(value)
                if len(shape) > 2:
                    calls[f"batch {value}"] = operands = list(finite)
                    operands[operand] = torch.full_like(finite[operand], float(value))
            for operands in calls.values():
                operands[:] = [T.detach().requires_grad_("gradients" in function) for T in operands]
            shortest, start, rounds = dict.fromkeys(calls, math.inf), time.perf_counter(), 0
            while rounds < SPECIAL_ROUNDS or (rounds < bench.trials and time.perf_counter() < start + SPECIAL_SECONDS):
                for name, operands in calls.items():
                    call_start = time.perf_counter()
                    call(*operands)
                    shortest[name] = min(shortest[name], time.perf_counter() - call_start)
                rounds += 1
            ratios = {name: seconds / shortest["finite"] for name, seconds in shortest.items() if name != "finite"}
            row = {"function": function, "shape": label, "rounds": rounds, "finite_ms": shortest["finite"] * 1e3}
            record.add({**row, "ratios": ratios, "most": max(ratios.values())})


def suite_host(bench, record):
    """Measures the host's time per call, as the mean of many calls in a row that do not wait for the GPU."""
    functions = {"torch.matmul": torch.matmul, "tril(matmul)": lambda A, B: torch.tril(torch.matmul(A, B))}
    functions["tril_matmul"] = bench.solution.tril_matmul
    A, B = bench.inputs("lower", (64, 64), (64, 64))
    G, code = torch.ones_like(A), "C = function(A, B)"
    for mode in ("no_grad", "autograd, forward", "autograd, forward and backward"):
        grad, times = mode != "no_grad", {name: [] for name in functions}
        code += "; grad(C, (A, B), G)" * mode.endswith("backward")
        A.requires_grad_(grad), B.requires_grad_(grad)
        with record.row(f"host {mode}"), torch.set_grad_enabled(grad):
            for name in [*functions] * (bench.trials + 2):  # the functions take turns
                names = {"function": functions[name], "grad": torch.autograd.grad, "A": A, "B": B, "G": G}
                times[name].append(timeit.timeit(code, bench.synchronize, globals=names, number=HOST_CALLS) / HOST_CALLS * 1e6)
            bench.synchronize()
            row = {"mode": mode, "N": 64, "calls": HOST_CALLS, "trials": bench.trials}
            row |= {name: measures.spread(microseconds[2:]) for name, microseconds in times.items()}  # the first two measurements warm up
            record.add({**row, "ours_minus_matmul_us": row["tril_matmul"]["median_us"] - row["torch.matmul"]["median_us"]})


def suite_determinism(bench, record):
    """Counts runs whose result differs from the first run's in any bit."""
    model = bench.solution.ModelNew()
    sizes = [(N, 200) for N in bench.sizes or ()] or ((1000, 1000), (4096, 1000))
    for (N, runs), inputs in itertools.product(sizes, ("uniform", "normal", "lognormal, sigma 3")):
        with record.row(f"determinism {N} {inputs}") as fail:
            A, B = bench.inputs("lower", (N, N), (N, N), inputs=inputs)
            path, first = bench.explain(A, B).get("path"), model(A, B).view(torch.int32)
            different = int(sum((model(A, B).view(torch.int32) != first).any() for _ in range(runs)))
            record.add({"N": N, "dtype": "float32", "inputs": inputs, "path": path, "runs": runs, "different": different})
            if different:
                fail(f"{different} of {runs} runs differ from the first")


# This script runs each of its arguments as code and prints the seconds that the code took. suite_build runs the script in a new process
# each time, because a process imports a file only once. The step `import_s` includes the start of CUDA, as a user's import does.
STEPS_PROBE = """
import sys, time
for step in sys.argv[1:]:
    start = time.perf_counter()
    exec(step)
    print(time.perf_counter() - start)
"""


def run(*command, seconds=300, accepted=(0,), **environment):
    """Runs a command and returns the result of subprocess.run. `environment` has additional environment variables. Raises RuntimeError if
    the exit status is not one of `accepted`."""
    process = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=seconds)
    if process.returncode not in accepted:
        raise RuntimeError(
            f"{Path(command[0]).name} ended with status {process.returncode}:\n{process.stdout[-2000:]}{process.stderr[-4000:]}"
        )
    return process


def suite_build(bench, record):
    """Measures how many seconds three steps take: `import torch`, the solution's import, and its first call, whose operand is made first.
    Each row comes from one new process. In the cold row the import compiles the kernels, and in the warm rows it finds them compiled."""
    file = bench.solution_file.resolve()
    steps = {"torch_s": "import torch", "import_s": f"sys.path.insert(0, {str(file.parent)!r}); module = __import__({file.stem!r})"}
    steps["first_call_s"] = f"A = torch.ones(128, 128, device={bench.device!r}).tril(); module.tril_matmul(A, A).sum().item()"
    with tempfile.TemporaryDirectory() as folder:
        for state in ["cold"] + ["warm"] * WARM_IMPORTS:
            with record.row(f"build, {state}"):
                output = run(sys.executable, "-c", STEPS_PROBE, *steps.values(), TORCH_EXTENSIONS_DIR=folder).stdout.split()
                seconds = dict(zip(steps, map(float, output[-len(steps) :]), strict=True))
                record.add({"state": state, "cores": len(os.sched_getaffinity(0)), **seconds})


def suite_check(bench, record):
    """Records the verdicts and times of check.py. Each run of check.py is a separate process."""
    command = [sys.executable, str(ROOT / "check.py"), "--solution", str(bench.solution_file), "--device", bench.device, "--batches"]
    command += ["--size", str(max(bench.sizes))] if bench.sizes else []
    for problem, dtype, path, *further_options in CHECKS:
        with record.row(" ".join(["check", problem, dtype, path, *further_options])) as fail, tempfile.TemporaryDirectory() as folder:
            options = ["--problem", problem, "--dtype", dtype, *further_options, "--json", f"{folder}/x"]
            run(*command, *options, seconds=600, accepted=(0, 1), TRIL_MATMUL_PATH=path)
            result = json.loads(Path(folder, "x").read_text())
            for times in result["timings"].values():
                for contender in ("alone", "reference", "solution"):
                    del times[contender]["each"]  # the times of the single calls, which the record leaves out
            record.add({"path": path, "dtype": dtype, **result}, result["sentence"])
            if result["verdict"] != "ok":
                fail(result["sentence"])


def suite_devices(bench, record):
    """Records the rows of examples/distributed.py on two GPUs. That script always uses this repository's model_new.py, not --solution."""
    for size, *batch in DEVICE_RUNS:
        with record.row(f"devices, {size}"), tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(ROOT / "examples" / "distributed.py")]
            run(*command, "--size", str(size), "--batch", *map(str, batch), "--json", f"{folder}/rows.json")
            for row in json.loads(Path(folder, "rows.json").read_text()):
                record.add(row)


def find_nvcc():
    """Returns the path of nvcc, or None."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(f"{home}/bin" for home in homes if home))


def nvcc_version():
    """Returns the version of the nvcc that find_nvcc finds, or None."""
    return collect_env.run_and_parse_first_match(collect_env.run, shlex.join([find_nvcc() or "nvcc", "--version"]), r"V([\d.]+)")


def ptxas_report(sources, flags, architecture):
    """Compiles the CUDA source for one architecture and returns what ptxas reports. Raises RuntimeError if nvcc is missing or fails."""
    if find_nvcc() is None:
        raise RuntimeError("no nvcc was found, neither on PATH nor in CUDA_HOME, CUDA_PATH or /usr/local/cuda")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.cu").write_text("\n".join(sources))
        options = ["-std=c++17", *flags, f"-arch={architecture}", "-Xptxas", "-v", "-cubin", "-o", f"{folder}/x"]
        process = run(find_nvcc(), *options, f"{folder}/x.cu")
    return process.stdout + process.stderr


def kernels_of(report):
    """Reads ptxas's report. Returns a list of dicts with kernel (its mangled name), registers, stack_bytes and spilled_bytes.

    spilled_bytes is the sum of all spill stores and spill loads of a kernel and of the functions that it calls. stack_bytes is the largest
    stack frame among them.
    """
    rows, patterns = [], (r"(\d+) bytes stack frame", r"(\d+) bytes spill", r"Used (\d+) registers")
    for kernel, kernel_report in re.findall(r"Compiling entry function '(\w+)'((?:(?!Compiling entry)[\s\S])*)", report):
        stacks, spilled, used = ([int(number) for number in re.findall(pattern, kernel_report)] for pattern in patterns)
        row = {"kernel": kernel, "registers": used[-1] if used else None, "stack_bytes": max(stacks, default=0)}
        rows.append(row | {"spilled_bytes": sum(spilled)})
    return rows


def serialized(report):
    """Returns the lines in which ptxas reports that it serializes wgmma instructions. Each wgmma then waits for the one before it."""
    return [line for line in report.splitlines() if "wgmma" in line and "serialized" in line]


def suite_registers(bench, record):
    """Records the registers, stack and spills of every kernel on each of ARCHITECTURES, as ptxas reports them. A spill and serialized
    wgmma instructions are failures. This suite needs nvcc, but no GPU."""
    record.content["versions"]["nvcc"] = nvcc_version()
    for architecture in ARCHITECTURES:
        with record.row(f"registers on {architecture}") as fail:
            report = ptxas_report(bench.solution._CUDA_SOURCES, bench.solution._NVCC_FLAGS, architecture)
            for line in serialized(report):
                fail(line)
            for row in kernels_of(report):
                record.add({"architecture": architecture, **row})
                if row["spilled_bytes"]:
                    fail(f"{row['kernel']} spills {row['spilled_bytes']} bytes")


PROFILED_METRICS = {  # maps ncu's names of metrics to the names in our records
    "gpu__time_duration.sum": "duration",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_instructions",
    "sm__pipe_shared_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor_pipe",
    "sm__issue_active.avg.pct_of_peak_sustained_elapsed": "issue_slots",
    "lts__t_bytes.sum.per_second": "l2_throughput",
    "lts__t_sector_hit_rate.pct": "l2_hit_rate",
    "dram__bytes.sum.per_second": "dram_throughput",
    "dram__bytes_read.sum": "dram_read",
    "dram__bytes_write.sum": "dram_written",
}
PROFILED_KERNELS = ("pack_blocks", "tile_product", "fixup_kernel")  # ncu skips torch's kernels, which make the inputs
PROFILED_CALLS = 3  # only the last call is recorded
PROFILED = f"""import runpy, sys, torch; file = runpy.run_path(sys.argv[1]); torch.manual_seed(0)
A, B = file["get_inputs"](); [file["tril_matmul"](A, B) for _ in range({PROFILED_CALLS})]; torch.cuda.synchronize()"""


def suite_profile(bench, record):
    """Records ncu's metrics for each kernel of one float32 product at N = 4096 with uniform inputs."""
    command = ["ncu", "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(PROFILED_METRICS)]
    command += ["-k", f"regex:{'|'.join(PROFILED_KERNELS)}", sys.executable, "-c", PROFILED, str(bench.solution_file)]
    output, kernels = run(*command).stdout, {}
    for cell in csv.DictReader(line for line in output.splitlines() if line.startswith('"')):
        kernel = kernels.setdefault(int(cell["ID"]), {"kernel": re.search(r"\w+(?=[<(])", cell["Kernel Name"]).group()})
        with contextlib.suppress(ValueError):  # ncu writes n/a for a metric that a GPU does not have
            kernel[PROFILED_METRICS.get(cell["Metric Name"])] = [float(cell["Metric Value"].replace(",", "")), cell["Metric Unit"]]
    if not kernels:
        raise RuntimeError(f"ncu has seen no kernel:\n{output[-2000:]}")
    for number in sorted(kernels)[-len(kernels) // PROFILED_CALLS :]:
        record.add(kernels[number])


def suite_cycles(bench, record):
    """Records where the cycles of the fp16x3 kernel go, by the SMs' clocks (see cycles.py). This suite compiles the kernels with trace.cuh,
    because an ordinary build records no traces."""
    sizes = map(str, bench.sizes or (2048, 4096, 8192))
    script, header = (str(ROOT / "benchmarks" / name) for name in ("cycles.py", "trace.cuh"))
    with tempfile.TemporaryDirectory() as builds:
        variables = {"NVCC_APPEND_FLAGS": f"-include {shlex.quote(header)}", "TORCH_EXTENSIONS_DIR": builds}
        output = run(sys.executable, script, str(bench.solution_file), *sizes, seconds=600, **variables).stdout
    for line in output.splitlines():
        record.add(json.loads(line))


# ---- Command line ----------------------------------------------------------------------------------------------------

GPU_SUITES = ("forward", "problems", "family", "backward", "batch", "mma", "host", "determinism", "build")
WITHOUT_GPU = ("registers", "cpu", "nan")
IF_ASKED = ("check", "peers", "limits", "infinite", "profile", "cycles", "devices")
SUITES = {name: globals().get(f"suite_{name}", functools.partial(measure_products, name)) for name in GPU_SUITES + IF_ASKED + WITHOUT_GPU}
FORCED = "mma"  # the suite that runs with TRIL_MATMUL_PATH=mma


def run_suite(name, bench, folder, commit=None):
    """Runs one suite and writes its record. Returns one message for each failure."""
    description = environment(bench, commit)
    versions = ", ".join(f"{key} {value}" for key, value in description["versions"].items() if value)
    print(f"\n== {name}: {description['device']}, {versions}, commit {description['commit']}, {description['date']}", flush=True)
    record, start = Record(name, description, folder), time.perf_counter()
    with record.row(name), torch.no_grad():
        SUITES[name](bench, record)
        record.content["complete"] = True
    record.content["seconds"] = round(time.perf_counter() - start, 1)
    record.write()
    for row in record.content["rows"]:
        if row.get("change", 0.0) > SLOWER:
            print(f"   {100 * row['change']:+.1f} % against `before`: {' '.join(str(row[key]) for key in LABELS if key in row)}")
    print(f"   {record.content['seconds']} s, written to {record.path}", flush=True)
    # After a CUDA error, which is already reported, empty_cache fails, too. Suites such as `build`, in other processes, can still run.
    with contextlib.suppress(RuntimeError):
        torch.cuda.empty_cache()  # because the next suite has other sizes
    return record.content["failures"]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog="This file's docstrings say what each suite measures.")
    add, has_gpu = parser.add_argument, torch.cuda.is_available()
    suite_help = f"default: {' '.join(GPU_SUITES)}; default without a GPU: cpu; also accepted: {' '.join(IF_ASKED + WITHOUT_GPU)}"
    add("--suite", nargs="+", choices=SUITES, metavar="NAME", help=suite_help)
    add("--sizes", nargs="+", type=positive, metavar="N", help="sizes in place of a suite's own; cases of fixed shape stay or are left out")
    add("--trials", type=positive, default=30, help="calls per side of a row, at least 5; long calls get fewer (default 30)")
    add(
        "--out",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="the folder of the records, in which each suite replaces its JSON file (default: benchmarks/results)",
    )
    add("--commit", help="the commit to record (default: what git says of this checkout)")
    add("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    add("--solution", type=Path, default=ROOT / "model_new.py", metavar="FILE", help="the file to time (default: model_new.py)")
    add("--against", type=Path, metavar="FILE", help="an older file, timed in turns as the side `before`; needs an --out of its own")
    options = parser.parse_args(arguments)
    options.suite = options.suite or (list(GPU_SUITES) if has_gpu else ["cpu"])
    need_gpu = [name for name in options.suite if name not in WITHOUT_GPU]
    if need_gpu and not has_gpu:
        message = f"{', '.join(need_gpu)} need a CUDA GPU, and torch sees none; accepted without one: {', '.join(WITHOUT_GPU)}"
        parser.error(f"argument --suite: {message}")
    forced = os.environ.get("TRIL_MATMUL_PATH", "auto")
    if forced != "auto" and [forced] != options.suite:
        parser.error(f"TRIL_MATMUL_PATH is {forced!r}, so other paths would not be measured; accepted: unset, or --suite {FORCED} alone")
    for name in ("solution", "against"):
        file = getattr(options, name)
        if file is not None and not (file.is_file() and file.suffix == ".py"):
            parser.error(f"argument --{name}: {file} is no Python file; accepted: one with model_new.py's functions")
    if options.against and options.out.resolve() == RESULTS:
        parser.error(f"argument --out: {options.out} holds the records of one file; with --against, another folder is accepted")
    return options


def main(arguments):
    options = parse_arguments(arguments)
    torch.set_float32_matmul_precision("highest")  # the reference and ours promise float32 accuracy only with this setting
    failures, threads = [], torch.get_num_threads()
    benches = {
        device: Bench(device, options.solution, options.trials, options.seed, options.sizes, options.against) for device in ("cuda", "cpu")
    }
    for name in dict.fromkeys(options.suite):
        if name == FORCED and os.environ.get("TRIL_MATMUL_PATH") != FORCED:
            # This suite needs a process of its own, because model_new.py reads TRIL_MATMUL_PATH when it is imported, and this process may
            # have imported it already. A second import in this process would spoil the other suites. torch has one operator per name, so
            # calls that go through torch's dispatcher would run the kernels of the second copy.
            sys.stdout.flush()
            command = [sys.executable, str(Path(__file__).resolve()), *arguments, "--suite", FORCED]  # the last --suite counts
            status = subprocess.run(command, env={**os.environ, "TRIL_MATMUL_PATH": FORCED}).returncode
            failures += [f"{FORCED}: its process ended with status {status}; what failed stands above"] * (status != 0)
            continue
        # Each CPU suite has a fixed number of threads, so that its records from different machines can be compared.
        torch.set_num_threads({"cpu": 2, "nan": 1}.get(name, threads))
        failures += run_suite(name, benches["cpu" if name in WITHOUT_GPU else "cuda"], options.out, options.commit)
    if failures:
        print(f"\n{len(failures)} failed:", *failures, sep="\n  ", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
