"""Time and error of model_new.py beside the references of reference_model.py, and the record that the README's tables are made from.

    python benchmarks/benchmark.py                       every suite that this machine is for
    python benchmarks/benchmark.py --suite forward host  some of them
    python benchmarks/tables.py                          then: write the tables into the documents
    python benchmarks/figures.py                         and draw the figures

Suites, for a CUDA GPU:

    forward      N = 64 .. 16384 float32; hard inputs at 4096; other dtypes, and TF32
    portable     the kernel that older GPUs get (TRIL_MATMUL_PATH=portable)
    mma          the one that those from Ampere on get (TRIL_MATMUL_PATH=mma)
    batch        many products in one call
    backward     forward and both gradients
    problems     lower, upper triangular and A.T @ B
    host         what the host spends on a call
    determinism  the same input many times: is the result bitwise the same
    build        seconds that an import takes, cold and warm

and six that run only if asked for: `check`, check.py's own judgements, `peers`, what a user could pick instead (peers.py beside this
file), `limits`, what the parts of a product take by themselves, as cuBLAS and torch do them, `profile`, what ncu (Nsight Compute) says
of the kernels of one product at N = 4096, `registers`, what ptxas says of every kernel on several architectures (it needs nvcc, and no
GPU), and `cpu`, for the CPU, which is the default where there is no GPU.

How GPU time is measured: by events around one call, after 256 MB were written so that the L2 holds none of the input; reference
and solution take turns, so that both see the same clocks; the median is what the ratio is made of, and the 10th and 90th
percentiles stand beside it. The host does not wait between calls, hence these are times of the GPU; `host` has the rest. check.py
writes nothing in between and gives each call inputs and memory of its own: its times are some 3 to 4 % longer.

How errors are measured: against the product in float64, normwise (Frobenius) and componentwise (the worst |C - truth| / (|A| |B|)),
on random rows and columns where all of them would be too many. Inputs, exact sums and bounds are those of judge/measures.py. A
time whose result is not right is reported as a failure.

Each suite writes DIR/<suite>.json after every row. The exit status is 0, or 1 if anything failed, or 2 for bad arguments.
"""

import argparse
import contextlib
import csv
import datetime
import functools
import hashlib
import importlib.util
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
PEERS_FILE = ROOT / "benchmarks" / "peers.py"
sys.path.insert(0, str(ROOT))  # check.py lies there

import check  # noqa: E402

FLUSH_BYTES = 256 << 20  # several times the L2 of any GPU so far, and what KernelBench writes
MIN_TRIALS = 5
ROW_SECONDS = 1.0  # of measuring, for one row; large sizes get fewer trials
WARM_SECONDS = 0.1  # before a row: an idle GPU runs at a fraction of its clock
FULL_ERROR_EDGE = 8192  # up to here every element is compared
SAMPLED_LINES = 256  # rows and columns that are compared beyond

FORWARD_SIZES = (64, 128, 256, 512, 1000, 1024, 2048, 4000, 4096, 8192, 16384)
HALF_SIZES = (64, 256, 512, 1024, 2048, 4096, 8192)
TF32_SIZES = (512, 1024, 2048, 4096, 8192)
PORTABLE_SIZES = (512, 1024, 2048, 4096)
BACKWARD_SIZES = (1024, 2048, 4096)
BACKWARD_BATCHES = ((16, 1024), (8, 2048))
LIMITS_SIZES = (1024, 2048, 4096, 8192)
PEERS_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
CPU_SIZES = (1, 64, 128, 256, 512, 1024, 2048)
CPU_BATCHES = ((1024, 128), (4096, 16), (64, 256))
CPU_BACKWARD_SIZES = (16, 64, 256, 1024)
CHECKS = (  # problem, dtype, TRIL_MATMUL_PATH, further options
    ("lower", "float32", "auto"),
    ("upper", "float32", "auto"),
    ("transposed_a", "float32", "auto"),
    ("lower", "float32", "auto", "--tf32"),
    ("lower", "float16", "auto"),
    ("lower", "float32", "mma"),
)
BATCHES = ((64, 512), (16, 1024), (8, 2048), (1024, 128))
TRANSPOSED_A_SHAPES = ((8192, 2048, 4096), (4096, 4096, 4096), (1000, 3000, 5000))  # K, M, N
DETERMINISM_RUNS = ((1000, 1000), (4096, 1000))  # N, runs
HOST_N = 64
HOST_CALLS = 100  # without waiting; few enough that the queue of launches never fills
WARM_IMPORTS = 3


# ---- Inputs ----------------------------------------------------------------------------------------------------------


HARD_INPUTS = ("lognormal, sigma 3", "rows of A over 16 decades", "columns of A over 16")  # of check.py's


def classes(problem):
    """The names of a problem's classes in the reference and in the solution."""
    return tuple(check.PROBLEMS[problem].prefix + name for name in ("Model", "ModelNew"))


def make_inputs(problem, a_shape, b_shape, dtype, inputs, device, seed):
    """A and B of a problem, as check.py draws them. The triangular ones hold zeros outside their triangle, because the reference reads
    those."""
    draw = check.Draw(seed, inputs, torch.device(device))
    return [check.PROBLEMS[problem].keep(V.to(dtype)) for V in check.DISTRIBUTIONS[inputs].make(draw, a_shape, b_shape, dtype)]


# ---- Errors ----------------------------------------------------------------------------------------------------------


def error_pair(C, truth, bound, rest=None):
    """Normwise and worst componentwise error. Where the bound is zero, anything but the truth counts as infinite.

    `rest`, if given, is what the float64 truth still misses.
    """
    difference = C.double() - truth
    if rest is not None:
        difference -= rest
    difference.abs_()
    norm = truth.norm().item()
    normwise = difference.norm().item() / norm if norm else float(difference.any())
    at_zero = torch.where(difference > 0, math.inf, 0.0)
    at_zero[difference.isnan()] = math.nan
    componentwise = torch.where(bound > 0, difference / bound, at_zero)
    return normwise, componentwise.max().item() if C.numel() else 0.0  # max hands a NaN on


def product_errors(X, Y, results):
    """Errors of several results for the product X @ Y, and over what they were taken.

    X (..., M, K), Y (..., K, N): float32, float16, bfloat16 or, without leading dimensions, float64.
    """
    compared = "all elements, against exact sums" if X.dtype == torch.float64 else "all elements"
    if max(X.shape[-2], Y.shape[-1]) > FULL_ERROR_EDGE:
        i = torch.randperm(X.shape[-2], device=X.device)[:SAMPLED_LINES]
        j = torch.randperm(Y.shape[-1], device=Y.device)[:SAMPLED_LINES]
        X, Y, results = X[..., i, :], Y[..., j], [C[..., i, :][..., j] for C in results]
        compared = f"{SAMPLED_LINES} random rows and columns"
    truth, rest = check.exact_product(X, Y)
    bound = X.double().abs() @ Y.double().abs()
    return [error_pair(C, truth, bound, rest) for C in results], compared


def error_limit(dtype, terms, reference_worst, tf32=False):
    """The componentwise error that a result may have: what check.py allows, and the rounding of a 16-bit result."""
    rounding = torch.finfo(dtype).eps / 2 if check.narrow(dtype) else 0.0
    return max(check.allowed(dtype, terms, tf32)[0], 2 * reference_worst) + rounding


def elementwise_bound(dtype, terms, exact, magnitude, tf32=False):
    """The error that each element of a result may have beside the float64 product `exact`, with magnitude = |A| |B|: what check.py allows
    without a reference, and one rounding of a 16-bit result. float64: what a sum may have lost, in the result and in `exact`."""
    if dtype == torch.float64:
        return (terms + 1) * 2.0**-52 * magnitude
    bound = check.allowed(dtype, terms, tf32)[0] * magnitude
    if not check.narrow(dtype):
        return bound
    info = torch.finfo(dtype)
    return bound + info.eps / 2 * exact.abs() + info.smallest_normal * info.eps / 2 * (magnitude > 0)


# ---- Time ------------------------------------------------------------------------------------------------------------


class Bench:
    """What the suites share: the files under test, the device, the clock, the arguments."""

    def __init__(self, device, solution=ROOT / "model_new.py", trials=30, seed=0, sizes=None, row_seconds=ROW_SECONDS):
        self.device, self.solution_file, self.trials, self.seed, self.sizes = device, Path(solution), trials, seed, sizes
        self.row_seconds = row_seconds

    @property
    def on_gpu(self):
        return self.device != "cpu"

    @functools.cached_property
    def reference(self):
        return load(ROOT / "reference_model.py")

    @functools.cached_property
    def solution(self):
        return load(self.solution_file)

    @functools.cached_property
    def _flushed(self):
        return torch.empty(FLUSH_BYTES // 4 if self.on_gpu else 0, dtype=torch.int32, device=self.device)

    def _flush(self):
        """So that the L2 holds none of the input."""
        self._flushed.fill_(1)

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def _timed(self, call):
        """Seconds of one call, waiting for its end."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def alternate(self, *calls):
        """Times the calls in turn. Returns their spreads, and the number of trials."""
        for call in calls:
            call()  # loads kernels, chooses cuBLAS's algorithm, fills the allocator's cache
        estimate = sum(self._timed(call) for call in calls)
        trials = max(MIN_TRIALS, min(self.trials, int(self.row_seconds / estimate)))
        until = time.perf_counter() + (WARM_SECONDS - estimate if self.on_gpu else 0)
        while time.perf_counter() < until:
            for call in calls:
                self._flush()
                call()
            self.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) if self.on_gpu else check.Moment() for _ in range(2 * trials * len(calls) + 1)]
        following = iter(marks)
        next(following).record()
        for _ in range(trials):
            for call in calls:
                self._flush()
                next(following).record()
                call()
                next(following).record()
        self.synchronize()
        times = [start.elapsed_time(end) * 1e3 for start, end in zip(marks[1::2], marks[2::2], strict=False)]  # without the flushes
        return [{**check.spread(mine), "best_us": min(mine)} for mine in (times[c :: len(calls)] for c in range(len(calls)))], trials

    def extra_bytes(self, call):
        """Device memory that a call takes at its peak beyond its result; None on the CPU, where torch does not count it."""
        if not self.on_gpu:
            call()
            return None
        self.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        return torch.cuda.max_memory_allocated() - before - result.numel() * result.element_size()


def load(path):
    """Import a file by its path, under its own name as `import` would."""
    path = Path(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise ValueError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# ---- Record ----------------------------------------------------------------------------------------------------------


def _output_of(*command):
    """The stripped output of a command, or None if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _cpu_name():
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit():
    """The commit of the checkout, and whether the files that decide the numbers differ from it; None where there is no git."""
    commit = _output_of("git", "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    changed = _output_of("git", "status", "--porcelain", "--", "model_new.py", "reference_model.py", "check.py", "judge", "benchmarks/*.py")
    return commit + (" with changes" if changed else "")


def environment(bench, commit=None):
    """Where and of what the numbers are."""
    gpu = bench.on_gpu
    driver = _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if gpu else None
    return {
        "device": torch.cuda.get_device_name() if gpu else f"{_cpu_name()}, {torch.get_num_threads()} threads",
        "capability": ".".join(map(str, torch.cuda.get_device_capability())) if gpu else None,
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda if gpu else None,
            "driver": driver.splitlines()[0] if driver else None,
            "python": platform.python_version(),
        },
        "commit": commit or _commit() or "unknown",
        "solution_sha256": hashlib.sha256(bench.solution_file.read_bytes()).hexdigest()[:16],
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "trials": bench.trials,
        "seed": bench.seed,
    }


class Record:
    """The rows of one suite: printed and written as they come, so that a run which is cut off leaves what it had."""

    def __init__(self, suite, environment, folder):
        self.path = Path(folder) / f"{suite}.json"
        self.content = {"suite": suite, **environment, "complete": False, "failures": [], "rows": []}

    @contextlib.contextmanager
    def row(self, label):
        """Measures one row; an exception costs this row alone."""
        try:
            yield
        except Exception as error:
            traceback.print_exc(limit=-4)  # the calls nearest to it
            self.fail(f"{label}: {type(error).__name__}: {error}")

    def fail(self, message):
        print(f"FAILED  {message}", file=sys.stderr, flush=True)
        self.content["failures"].append(message)
        self.write()

    def add(self, row, line):
        self.content["rows"].append(row)
        print(line, flush=True)
        self.write()

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1) + "\n")


def us(times):
    """'2728.1 (2720.0 to 2741.3)'"""
    return f"{times['median_us']:.1f} ({times['p10_us']:.1f} to {times['p90_us']:.1f})"


HEADER = (
    f"{'problem':<15}{'shape':<25}{'dtype':<10}{'inputs':<31}{'path':<10}{'reference, us':>32}{'ours, us':>29}{'ratio':>8}"
    f"{'  reference norm/worst':<23}{'ours norm/worst':<20}"
)


def row_line(row):
    a, b = row["reference"], row["ours"]
    return (
        f"{row['problem']:<15}{row['shape']:<25}{row['dtype']:<10}{row['inputs']:<31}{row['path'] or '?':<10}{us(a):>32}{us(b):>29}"
        f"{row['ratio']:>7.2f}x  {a['norm_error']:.1e} {a['worst_error']:.1e}    {b['norm_error']:.1e} {b['worst_error']:.1e}"
        f"{'' if row['within_contract'] else '  NOT WITHIN THE CONTRACT'}"
    )


# ---- Suites ----------------------------------------------------------------------------------------------------------


def useful_flop(problem, shape_k_m_n, batch=1):
    """Floating-point operations that the mathematics needs (2 a multiply-add)."""
    K, M, N = shape_k_m_n
    return 2 * batch * (K * M * N if problem == "transposed_a" else N * (N + 1) * (N + 2) // 6)


def path_of(bench, A, B, problem):
    """Which path computes this product, as the solution itself says."""
    if not A.is_cuda:
        return {"path": "cpu"}
    return bench.solution.explain(A, B, problem=problem)


def finish_row(record, row, dtype, terms):
    """Ratio and verdict, then into the record."""
    row["ratio"] = row["reference"]["median_us"] / row["ours"]["median_us"]
    limit = error_limit(dtype, terms, row["reference"]["worst_error"], row.get("tf32", False))
    row["within_contract"] = row["ours"]["worst_error"] <= limit  # a NaN is not
    record.add(row, row_line(row))
    if not row["within_contract"]:
        worst = row["ours"]["worst_error"]
        record.fail(
            f"{row['problem']} {row['shape']} {row['dtype']} {row['inputs']}: worst error {worst:.2e}, but at most {limit:.2e} may be"
        )


@torch.no_grad()
def measure_forward(bench, record, group, problem, dims, dtype=torch.float32, inputs="uniform", batch=None, path=None):
    """One row: forward of one problem. dims is N, or (K, M, N) of A.T @ B. `path`, if given, is the one that must have run."""
    K, M, N = dims if problem == "transposed_a" else (dims,) * 3
    lead = () if batch is None else (batch,)
    shape = f"{K} x {M}, {K} x {N}" if problem == "transposed_a" else str(N)
    if batch is not None:
        shape = f"{batch} x {N} x {N}"
    dtype_name = str(dtype).removeprefix("torch.")
    with record.row(f"{problem} {shape} {dtype_name} {inputs}"):
        reference_name, solution_name = classes(problem)
        reference_model, solution_model = getattr(bench.reference, reference_name)(), getattr(bench.solution, solution_name)()
        a_shape = (K, M) if problem == "transposed_a" else (M, K)
        A, B = make_inputs(problem, (*lead, *a_shape), (*lead, K, N), dtype, inputs, bench.device, bench.seed)
        extra = bench.extra_bytes(lambda: solution_model(A, B))  # before anything could have left it a workspace
        chosen = path_of(bench, A, B, problem)
        if path is not None and A.is_cuda and chosen.get("path") != path:
            raise RuntimeError(f"the {path} path was asked for, but the solution says {chosen}")
        X = A.mT if problem == "transposed_a" else A
        (reference_error, own_error), compared = product_errors(X, B, [reference_model(A, B), solution_model(A, B)])
        (reference_time, own_time), trials = bench.alternate(lambda: reference_model(A, B), lambda: solution_model(A, B))
        row = {
            "group": group,
            "problem": problem,
            "shape": shape,
            "K": K,
            "M": M,
            "N": N,
            "batch": batch,
            "dtype": dtype_name,
            "inputs": inputs,
            "tf32": dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest",
            **{name: chosen.get(name) for name in ("path", "fallback", "outliers")},
            "reference": {**reference_time, "norm_error": reference_error[0], "worst_error": reference_error[1]},
            "ours": {**own_time, "norm_error": own_error[0], "worst_error": own_error[1]},
            "compared": compared,
            "trials": trials,
            "useful_flop": useful_flop(problem, (K, M, N), batch or 1),
            "extra_bytes": extra,
        }
        finish_row(record, row, dtype, K)


def _special_size(bench, usual=4096):
    """The size of rows that are measured at one size only."""
    return usual if bench.sizes is None or usual in bench.sizes else max(bench.sizes)


def suite_forward(bench, record):
    print(HEADER)
    for N in bench.sizes or FORWARD_SIZES:
        for inputs in ("uniform", "normal"):
            measure_forward(bench, record, "sizes", "lower", N, inputs=inputs)
    N = _special_size(bench)
    for inputs in HARD_INPUTS:
        measure_forward(bench, record, "hard", "lower", N, inputs=inputs)
    measure_forward(bench, record, "dtypes", "lower", N, torch.float64)
    for dtype in (torch.float16, torch.bfloat16):
        for N in bench.sizes or HALF_SIZES:
            measure_forward(bench, record, "dtypes", "lower", N, dtype)
    with load(PEERS_FILE).tf32_allowed():  # for both sides
        for N in bench.sizes or TF32_SIZES:
            measure_forward(bench, record, "tf32", "lower", N)


def suite_portable(bench, record):
    """With TRIL_MATMUL_PATH=portable set before the file is imported; see in_forced_process."""
    print(HEADER)
    for N in bench.sizes or PORTABLE_SIZES:
        measure_forward(bench, record, "sizes", "lower", N, path="portable")
    measure_forward(bench, record, "dtypes", "lower", _special_size(bench), torch.float64, path="portable")


def suite_mma(bench, record):
    """With TRIL_MATMUL_PATH=mma set before the file is imported; see in_forced_process."""
    print(HEADER)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for N in bench.sizes or HALF_SIZES:
            measure_forward(bench, record, "sizes", "lower", N, dtype, path="mma")
    for inputs in HARD_INPUTS:
        measure_forward(bench, record, "hard", "lower", _special_size(bench), inputs=inputs, path="mma")
    measure_forward(bench, record, "problems", "upper", _special_size(bench), path="mma")
    measure_forward(bench, record, "problems", "transposed_a", TRANSPOSED_A_SHAPES[0], path="mma")


def suite_batch(bench, record):
    print(HEADER)
    for dtype in (torch.float32, torch.float16):
        for batch, N in BATCHES:
            measure_forward(bench, record, "batch", "lower", N, dtype, batch=batch)


def suite_problems(bench, record):
    print(HEADER)
    for problem in ("lower", "upper"):
        measure_forward(bench, record, "problems", problem, _special_size(bench))
    for dims in TRANSPOSED_A_SHAPES:
        measure_forward(bench, record, "problems", "transposed_a", dims)
    measure_forward(bench, record, "problems", "transposed_a", TRANSPOSED_A_SHAPES[0], torch.float16)


def measure_backward(bench, record, group, N, batch=(), dtype=torch.float32):
    """Forward and backward of one size."""
    reference_model = bench.reference.Model()
    dtype_name, shape = str(dtype).removeprefix("torch."), (*batch, N, N)
    with record.row(f"forward and backward {shape} {dtype_name}"):
        solution_model = bench.solution.ModelNew()
        A, B = make_inputs("lower", shape, shape, dtype, "uniform", bench.device, bench.seed)
        G = torch.rand(shape, device=bench.device).to(dtype)  # above the diagonal too, where neither may use it
        chosen = path_of(bench, A, B, "lower")
        A.requires_grad_(), B.requires_grad_()

        def step(model, A=A, B=B, G=G):
            return torch.autograd.grad(model(A, B), (A, B), G)

        reference_gradients, own_gradients = step(reference_model), step(solution_model)
        (reference_error, own_error) = _gradient_errors(A, B, G, reference_gradients, own_gradients)
        del reference_gradients, own_gradients
        (reference_time, own_time), trials = bench.alternate(
            functools.partial(step, reference_model), functools.partial(step, solution_model)
        )
        row = {
            "group": group,
            "problem": "lower, dA, dB",
            "shape": " x ".join(map(str, shape)) if batch else str(N),
            "N": N,
            "dtype": dtype_name,
            "inputs": "uniform",
            **{name: chosen.get(name) for name in ("path", "fallback", "outliers")},
            "reference": {**reference_time, "norm_error": reference_error[0], "worst_error": reference_error[1]},
            "ours": {**own_time, "norm_error": own_error[0], "worst_error": own_error[1]},
            "compared": "all elements of both gradients",
            "trials": trials,
            "useful_flop": 3 * useful_flop("lower", (N, N, N), *batch),
        }
        finish_row(record, row, dtype, N)


def suite_backward(bench, record):
    print(HEADER)
    for N in bench.sizes or BACKWARD_SIZES:
        measure_backward(bench, record, "backward", N)
    measure_backward(bench, record, "backward", _special_size(bench), dtype=torch.float16)
    for batch, N in () if bench.sizes else BACKWARD_BATCHES:
        measure_backward(bench, record, "backward", N, (batch,))


def suite_cpu(bench, record):
    print(HEADER)
    for N in bench.sizes or CPU_SIZES:
        measure_forward(bench, record, "cpu", "lower", N)
    for batch, N in () if bench.sizes else CPU_BATCHES:
        measure_forward(bench, record, "cpu", "lower", N, batch=batch)
    for N in bench.sizes or CPU_BACKWARD_SIZES:
        measure_backward(bench, record, "cpu", N)


@torch.no_grad()
def _gradient_errors(A, B, G, reference_gradients, own_gradients):
    """The worse of dA's and dB's errors, of the reference (its lower triangle: what the operator defines) and of ours."""
    A, B, G = A.double(), B.double(), G.double().tril_()
    errors = []
    for X, Y, reference, own in ((G, B.mT, reference_gradients[0], own_gradients[0]), (A.mT, G, reference_gradients[1], own_gradients[1])):
        truth, bound = (X @ Y).tril_(), (X.abs() @ Y.abs()).tril_()
        errors.append((error_pair(reference.tril(), truth, bound), error_pair(own, truth, bound)))
    worse = []
    for of_dA, of_dB in zip(*errors, strict=True):
        both = torch.tensor([of_dA, of_dB], dtype=torch.float64)
        worse.append(both.max(dim=0).values.tolist())  # a NaN stays one, unlike with Python's max
    return worse


def suite_host(bench, record):
    """Host time a call: many calls in a row without waiting for the GPU."""
    functions = {
        "torch.matmul": torch.matmul,
        "tril(matmul)": lambda A, B: torch.tril(torch.matmul(A, B)),
        "tril_matmul": bench.solution.tril_matmul,
    }
    A, B = make_inputs("lower", (HOST_N, HOST_N), (HOST_N, HOST_N), torch.float32, "uniform", bench.device, bench.seed)
    G = torch.ones_like(A)
    print(f"{'N = ' + str(HOST_N):<32}" + "".join(f"{name + ', us':>30}" for name in functions))
    for mode in ("no_grad", "autograd, forward", "autograd, forward and backward"):
        with record.row(f"host {mode}"):
            grad, backward = mode != "no_grad", mode.endswith("backward")
            A.requires_grad_(grad), B.requires_grad_(grad)

            def call(function, backward=backward):
                C = function(A, B)
                return torch.autograd.grad(C, (A, B), G) if backward else C

            times = {name: [] for name in functions}
            with torch.set_grad_enabled(grad):
                for round_ in range(bench.trials + 2):
                    for name, function in functions.items():
                        bench.synchronize()
                        start = time.perf_counter()
                        for _ in range(HOST_CALLS):
                            call(function)
                        seconds = time.perf_counter() - start
                        if round_ >= 2:  # the first two warm up
                            times[name].append(seconds / HOST_CALLS * 1e6)
            bench.synchronize()
            spreads = {name: check.spread(mine) for name, mine in times.items()}
            row = {"mode": mode, "N": HOST_N, "calls": HOST_CALLS, "trials": bench.trials, **spreads}
            row["ours_minus_matmul_us"] = spreads["tril_matmul"]["median_us"] - spreads["torch.matmul"]["median_us"]
            record.add(row, f"{mode:<32}" + "".join(f"{us(spreads[name]):>30}" for name in functions))


@torch.no_grad()
def suite_determinism(bench, record):
    """Counts runs whose result is not bitwise that of the first run."""
    model = bench.solution.ModelNew()
    cases = [(N, 200) for N in bench.sizes] if bench.sizes else DETERMINISM_RUNS
    print(f"{'N':<8}{'inputs':<31}{'path':<12}{'runs':>8}{'different':>12}")
    for N, runs in cases:
        for inputs in ("uniform", "normal", "lognormal, sigma 3"):
            with record.row(f"determinism {N} {inputs}"):
                A, B = make_inputs("lower", (N, N), (N, N), torch.float32, inputs, bench.device, bench.seed)
                path = path_of(bench, A, B, "lower").get("path")
                first = model(A, B).view(torch.int32)
                different = torch.zeros((), dtype=torch.int64, device=bench.device)
                for _ in range(runs):
                    different += (model(A, B).view(torch.int32) != first).any()
                count = int(different)
                row = {"N": N, "dtype": "float32", "inputs": inputs, "path": path, "runs": runs, "different": count}
                record.add(row, f"{N:<8}{inputs:<31}{path or '?':<12}{runs:>8}{count:>12}")
                if count:
                    record.fail(f"determinism {N} {inputs}: {count} of {runs} runs differ from the first")


# Its own process, because an import happens once. What CUDA takes to start is in `import`, as a user has it.
_IMPORT_PROBE = """
import json, sys, time
start = time.perf_counter()
import torch
after_torch = time.perf_counter()
sys.path.insert(0, sys.argv[1])
module = __import__(sys.argv[2])
after_import = time.perf_counter()
A = torch.ones(128, 128, device=sys.argv[3]).tril()
module.tril_matmul(A, A).sum().item()
end = time.perf_counter()
print(json.dumps({"torch_s": after_torch - start, "import_s": after_import - after_torch, "first_call_s": end - after_import}))
"""


def suite_build(bench, record):
    print(f"{'import':<10}{'import torch, s':>18}{'import model_new, s':>22}{'first call, s':>16}")
    file = bench.solution_file.resolve()
    probe = [sys.executable, "-c", _IMPORT_PROBE, str(file.parent), file.stem, bench.device]
    with tempfile.TemporaryDirectory() as folder:
        for state, runs in (("cold", 1), ("warm", WARM_IMPORTS)):
            for _ in range(runs):
                with record.row(f"build, {state}"):
                    done = subprocess.run(
                        probe,
                        env={**os.environ, "TORCH_EXTENSIONS_DIR": folder},
                        capture_output=True,
                        text=True,
                        timeout=300,
                    )
                    if done.returncode != 0:
                        raise RuntimeError(f"the import failed with status {done.returncode}:\n{done.stderr[-4000:]}")
                    row = {"state": state, **json.loads(done.stdout.splitlines()[-1])}
                    record.add(row, f"{state:<10}{row['torch_s']:>18.2f}{row['import_s']:>22.2f}{row['first_call_s']:>16.2f}")


ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")


def find_nvcc():
    """The compiler's path, or None."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return shutil.which("nvcc") or next((p for home in homes if home and (p := shutil.which("nvcc", path=f"{home}/bin"))), None)


def ptxas_report(sources, flags, architecture):
    """What ptxas says of the CUDA source compiled for one architecture. Raises RuntimeError."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise RuntimeError("no nvcc was found, neither on PATH nor in CUDA_HOME")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.cu").write_text("\n".join(sources))
        command = [nvcc, "-std=c++17", *flags, "-DTRIL_MATMUL_MMA", f"-arch={architecture}", "-Xptxas", "-v", "-cubin", "-o", "x", "x.cu"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"nvcc ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def kernels_of(report):
    """[{kernel (mangled), registers, stack_bytes, spilled_bytes}] of what ptxas says; with a kernel, the functions that it calls."""
    found = []
    for line in report.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            found.append({"kernel": match[1], "registers": None, "stack_bytes": 0, "spilled_bytes": 0})
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            found[-1]["stack_bytes"] = max(found[-1]["stack_bytes"], int(match[1]))
            found[-1]["spilled_bytes"] += int(match[2]) + int(match[3])
        elif match := re.search(r"Used (\d+) registers", line):
            found[-1]["registers"] = int(match[1])
    return found


def nvcc_version():
    """Of the compiler that find_nvcc finds, or None."""
    version = re.search(r"V([\d.]+)", _output_of(find_nvcc() or "nvcc", "--version") or "")
    return version[1] if version else None


def serialized(report):
    """What ptxas says of kernels in which it lets no wgmma begin before the one ahead has ended."""
    return [line for line in report.splitlines() if "wgmma" in line and "serialized" in line]


def suite_registers(bench, record):
    """Registers, stack and spills of every kernel, the mma kernel among them, by ptxas. Needs nvcc, and no GPU."""
    record.content["versions"]["nvcc"] = nvcc_version()
    for architecture in ARCHITECTURES:
        with record.row(f"registers on {architecture}"):
            report = ptxas_report(bench.solution._CUDA_SOURCES, bench.solution._NVCC_FLAGS, architecture)
            for line in serialized(report):
                record.fail(f"registers on {architecture}: {line}")
            for row in kernels_of(report):
                line = f"{architecture:<9}{row['registers']:>4} registers{row['stack_bytes']:>5} bytes of stack  {row['kernel'][:90]}"
                record.add({"architecture": architecture, **row}, line)
                if row["spilled_bytes"]:
                    record.fail(f"registers on {architecture}: {row['kernel']} spills {row['spilled_bytes']} bytes")


def suite_check(bench, record):
    """What check.py says, each time in processes of its own."""
    for problem, dtype, path, *more in CHECKS:
        name = " ".join(["check", problem, dtype, path, *more])
        with record.row(name), tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "check.json"
            command = [sys.executable, str(ROOT / "check.py"), "--problem", problem, "--dtype", dtype, "--device", bench.device]
            command += ["--solution", str(bench.solution_file), "--batches", "--json", str(file), *more]
            command += ["--size", str(max(bench.sizes))] if bench.sizes else []
            environ = {**os.environ, "TRIL_MATMUL_PATH": path}
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)
            if done.returncode not in (0, 1):
                raise RuntimeError(f"check.py ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            found = json.loads(file.read_text())
            record.add({"path": path, "dtype": dtype, **found}, found["sentence"])
            if found["verdict"] != "ok":
                record.fail(f"{name}: {found['sentence']}")


def _one_after_the_other(first, second):
    first()
    second()


@torch.no_grad()
def suite_limits(bench, record):
    """The parts of a product beside the whole, in turn.

    Three float16 products of N^3 / 6 multiply-adds each, which is what float32 accuracy takes from float16 tensor cores and no tile more,
    are as many as one of N x N/2 by N/2 x N. Both operands, two triangles of float32, are N x N elements to be read and, as pairs of
    float16, to be written. C is N x N elements to be written. None of these knows a triangle: there are no diagonals to lose time at.
    """
    reference_model, solution_model = bench.reference.Model(), bench.solution.ModelNew()
    for N in bench.sizes or LIMITS_SIZES:
        with record.row(f"limits {N}"):
            A, B = make_inputs("lower", (N, N), (N, N), torch.float32, "uniform", bench.device, bench.seed)
            packed, word = torch.empty_like(A), torch.empty(1, device=bench.device)
            parts = {"reference": functools.partial(reference_model, A, B), "ours": functools.partial(solution_model, A, B)}
            parts |= {"copy": functools.partial(packed.copy_, A), "write": packed.zero_, "launch": word.zero_}
            for inputs in ("uniform", "normal"):
                X, Y = make_inputs("transposed_a", (N, N // 2), (N // 2, N), torch.float16, inputs, bench.device, bench.seed)
                parts[f"float16_product_{inputs}"] = functools.partial(torch.matmul, X, Y)
                parts[f"copy_then_product_{inputs}"] = functools.partial(
                    _one_after_the_other, parts["copy"], parts[f"float16_product_{inputs}"]
                )
            spreads, trials = bench.alternate(*parts.values())
            row = {"N": N, "trials": trials, **dict(zip(parts, spreads, strict=True))}
            record.add(row, f"{N:<8}" + ", ".join(f"{part} {us(row[part])}" for part in parts))


def wrong_beyond(dtype, terms, name):
    """The componentwise error from which a peer is wrong, rather than less exact than ours."""
    if name == "tf32":
        return 2.0**-9  # two operands rounded to 11 bits
    rounding = 16 * torch.finfo(dtype).eps / 2 if check.narrow(dtype) else 0.0  # `blocked` rounds once a block
    return check.allowed(dtype, terms)[1] + rounding


def measure_peers(bench, record, peers, N, dtype):
    """One row: everybody's time, in turn, and errors. Nothing is timed whose result is wrong."""
    dtype_name = str(dtype).removeprefix("torch.")
    with record.row(f"peers {N} {dtype_name}"):
        A, B = make_inputs("lower", (N, N), (N, N), dtype, "uniform", bench.device, bench.seed)
        chosen = path_of(bench, A, B, "lower")
        calls = {"reference": functools.partial(bench.reference.Model(), A, B), "ours": functools.partial(bench.solution.ModelNew(), A, B)}
        skipped = {}
        for name, prepare in peers.PEERS.items():
            try:
                calls[name] = prepare(A, B)
            except peers.Unavailable as why:
                skipped[name] = str(why)
        errors, compared = product_errors(A, B, [call() for call in calls.values()])
        errors = dict(zip(calls, errors, strict=True))
        limits = {name: wrong_beyond(dtype, N, name) for name in calls}
        limits["ours"] = error_limit(dtype, N, errors["reference"][1])
        wrong = [
            f"{name}: worst error {errors[name][1]:.2e}, above {limits[name]:.2e}" for name in calls if not errors[name][1] <= limits[name]
        ]
        if wrong:
            raise RuntimeError(f"nothing is timed, because of {'; '.join(wrong)}")
        spreads, trials = bench.alternate(*calls.values())
        sides = {
            name: {**times, "norm_error": errors[name][0], "worst_error": errors[name][1]}
            for name, times in zip(calls, spreads, strict=True)
        }
        if "triton" in sides:
            sides["triton"]["tile"] = calls["triton"].configuration
        row = {
            "N": N,
            "dtype": dtype_name,
            "inputs": "uniform",
            "path": chosen.get("path"),
            **sides,
            "skipped": skipped,
            "ratio": sides["reference"]["median_us"] / sides["ours"]["median_us"],
            "within_contract": True,
            "compared": compared,
            "trials": trials,
            "useful_flop": useful_flop("lower", (N, N, N)),
        }
        told = [f"{name} {us(side)} {side['norm_error']:.1e} {side['worst_error']:.1e}" for name, side in sides.items()]
        record.add(row, f"{N:<7}{dtype_name:<10}" + ", ".join(told) + "".join(f"; no {name}: {why}" for name, why in skipped.items()))


@torch.no_grad()
def suite_peers(bench, record):
    """What a user could pick instead."""
    peers = load(PEERS_FILE)
    if peers.triton is not None:
        record.content["versions"]["triton"] = peers.triton.__version__
    print("N      dtype     of each: us, norm and worst error")
    cases = [(N, torch.float32) for N in bench.sizes or PEERS_SIZES]
    cases += [(_special_size(bench), dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64)]
    for N, dtype in cases:
        measure_peers(bench, record, peers, N, dtype)


PROFILED_METRICS = {  # ncu's name -> ours
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
PROFILED_KERNELS = ("reset_counters", "pack_blocks", "hopper_product", "product_behind")  # torch's own, which make inputs, are left out
PROFILED_CALLS = 3  # the last is recorded
PROFILED = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, model_new
torch.manual_seed(0)
A, B = model_new.get_inputs()
for _ in range(int(sys.argv[2])):
    model_new.tril_matmul(A, B)
torch.cuda.synchronize()
"""


def suite_profile(bench, record):
    """What ncu counts in each kernel of one product at N = 4096."""
    command = ["ncu", "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(PROFILED_METRICS)]
    command += [
        "-k",
        f"regex:{'|'.join(PROFILED_KERNELS)}",
        sys.executable,
        "-c",
        PROFILED,
        str(bench.solution_file.parent),
        str(PROFILED_CALLS),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    table = [line for line in run.stdout.splitlines() if line.startswith('"')]
    if run.returncode or not table:
        raise RuntimeError(f"ncu ended with status {run.returncode}:\n{run.stdout[-1500:]}{run.stderr[-1500:]}")
    kernels = {}
    for cell in csv.DictReader(table):
        kernel = kernels.setdefault(int(cell["ID"]), {"kernel": re.search(r"\w+(?=[<(])", cell["Kernel Name"]).group()})
        ours = PROFILED_METRICS.get(cell["Metric Name"])
        with contextlib.suppress(ValueError):  # ncu writes n/a for what a GPU does not count
            kernel[ours] = [float(cell["Metric Value"].replace(",", "")), cell["Metric Unit"]]
    rows = [kernels[number] for number in sorted(kernels)]
    for row in rows[-len(rows) // PROFILED_CALLS :]:
        record.add(row, f"{row['kernel']:<20}" + ", ".join(f"{key} {row[key][0]:.4g} {row[key][1]}" for key in row if key != "kernel"))


GPU_SUITES = {
    "forward": suite_forward,
    "problems": suite_problems,
    "backward": suite_backward,
    "batch": suite_batch,
    "portable": suite_portable,
    "mma": suite_mma,
    "host": suite_host,
    "determinism": suite_determinism,
    "build": suite_build,
}
WITHOUT_GPU = {"registers": suite_registers, "cpu": suite_cpu}
SUITES = {**GPU_SUITES, "check": suite_check, "peers": suite_peers, "limits": suite_limits, "profile": suite_profile, **WITHOUT_GPU}


def run_suite(name, bench, folder, commit=None):
    """Run one suite and write its record. Returns the list of what failed."""
    described = environment(bench, commit)
    versions = ", ".join(f"{key} {value}" for key, value in described["versions"].items() if value)
    print(f"\n== {name}: {described['device']}, {versions}, commit {described['commit']}, {described['date']}", flush=True)
    record = Record(name, described, folder)
    start = time.perf_counter()
    try:
        SUITES[name](bench, record)
        record.content["complete"] = True
    except Exception as error:
        traceback.print_exc(limit=-4)  # the calls nearest to it
        record.fail(f"{name}: {type(error).__name__}: {error}")
    record.content["seconds"] = round(time.perf_counter() - start, 1)
    record.write()
    print(f"   {record.content['seconds']} s, written to {record.path}", flush=True)
    if bench.on_gpu:
        with contextlib.suppress(RuntimeError):  # after a CUDA error, which is reported already; `build` can still run
            torch.cuda.empty_cache()  # the next suite's sizes differ
    return record.content["failures"]


FORCED = ("portable", "mma")  # suites of the path that has their name


def in_forced_process(given, name):
    """A suite of FORCED in a process of its own, since the variable is read at import. Returns the list of what failed.

    A second copy of the file in this process would not do: torch has one operator of a name, so both copies would run one kernel.
    """
    command = [sys.executable, str(Path(__file__).resolve()), "--suite", name]
    for option in ("trials", "seconds", "out", "seed", "solution", "commit"):
        if getattr(given, option) is not None:
            command += [f"--{option}={getattr(given, option)}"]
    command += ["--sizes", *map(str, given.sizes)] if given.sizes else []
    sys.stdout.flush()
    status = subprocess.run(command, env={**os.environ, "TRIL_MATMUL_PATH": name}).returncode
    return [f"{name}: its process ended with status {status}; what failed stands above"] if status else []


def positive(text):
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no positive whole number")
    return value


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog="See the head of the file for what each suite measures.")
    parser.add_argument("--suite", nargs="+", choices=list(SUITES), metavar="NAME", help=f"any of {', '.join(SUITES)}")
    parser.add_argument("--sizes", nargs="+", type=positive, metavar="N", help="instead of a suite's own N, where it has some")
    parser.add_argument("--trials", type=positive, default=30, help="calls of each side a row, fewer at large sizes (default 30)")
    parser.add_argument("--seconds", type=float, default=ROW_SECONDS, help=f"of measuring for one row at most (default {ROW_SECONDS})")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR", help="where the JSON files go")
    parser.add_argument("--commit", help="what to record where there is no git checkout to ask")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    parser.add_argument("--threads", type=positive, default=2, help="of the CPU suite (default 2)")
    parser.add_argument("--solution", type=Path, default=ROOT / "model_new.py", metavar="FILE", help="in place of model_new.py")
    given = parser.parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    if given.suite is None:
        given.suite = list(GPU_SUITES) if has_gpu else ["cpu"]
    need_gpu = [name for name in given.suite if name not in WITHOUT_GPU]
    if need_gpu and not has_gpu:
        without = ", ".join(WITHOUT_GPU)
        parser.error(f"argument --suite: {', '.join(need_gpu)} need a CUDA GPU, and torch sees none; accepted without one: {without}")
    forced = os.environ.get("TRIL_MATMUL_PATH")
    if forced not in (None, "auto") and given.suite != [forced]:
        alone = " or ".join(f"--suite {name}" for name in FORCED)
        parser.error(
            f"TRIL_MATMUL_PATH is {forced!r}, so other paths would not be measured; accepted: unset (or {alone} of that path alone)"
        )
    if not given.solution.is_file():
        parser.error(f"argument --solution: {given.solution} is no file; accepted: a Python file with model_new.py's functions")
    if given.seconds <= 0:
        parser.error(f"argument --seconds: {given.seconds} is given; accepted: more than 0")
    return given


def main(arguments=None):
    given = parse_arguments(arguments)
    torch.set_float32_matmul_precision("highest")  # what both sides promise float32 for
    gpu_bench, cpu_bench = (
        Bench(device, given.solution, trials=given.trials, seed=given.seed, sizes=given.sizes, row_seconds=given.seconds)
        for device in ("cuda", "cpu")
    )
    failures = []
    for name in dict.fromkeys(given.suite):
        if name in FORCED and os.environ.get("TRIL_MATMUL_PATH") != name:
            failures += in_forced_process(given, name)
            continue
        threads = torch.get_num_threads()
        if name == "cpu":
            torch.set_num_threads(given.threads)
        failures += run_suite(name, cpu_bench if name in WITHOUT_GPU else gpu_bench, given.out, given.commit)
        torch.set_num_threads(threads)
    if failures:
        print(f"\n{len(failures)} failed:", *failures, sep="\n  ", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
