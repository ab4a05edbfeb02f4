"""Tests that model_new.py stays right over some 150,000 calls: random calls, threads, full memory, graphs, streams, large sizes, two GPUs.

    python benchmarks/soak.py                            all sections
    python benchmarks/soak.py --section mixed threads    only these sections
    python benchmarks/soak.py --calls 2000 --seconds 60  at most 2000 calls and about one minute per section

Sections:

    mixed    random size, dtype, strides, batch, problem (see `table`) and stream; a tenth of the calls have gradients
    threads  eight threads call at the same time, each on its own stream; a thread ends after a hundred calls, and a new one follows
    memory   calls run out of memory, each time at another allocation; the next call has to be right
    graphs   CUDA graphs, most of them with a backward pass, are launched again and again with new inputs
    streams  operands are freed, and other tensors are written, while the product may still be running
    large    N = 32768, elements more than 2^31 apart, batches of 10^5; on a CPU all of these are smaller
    search   float32 operands change at random; a change is kept if the largest error comes nearer to its bound
    devices  two GPUs: first calls of a process and mixed calls on cuda:1, one thread per device, DDP and FSDP

A section ends early after 500 s, or after --seconds. This counts as a failure, unless --calls is given. `memory` and `large` ignore
--calls, because their calls are fixed. A section is skipped if the machine lacks the GPUs that it needs.

Every element of every result is compared with a float64 result, on the device. Its error may reach the bound that expected() returns. This
is elementwise_bound of judge/measures.py in most cases. Most sections also accept, as check.py does, twice the error of torch's own product
(see excuse). The host reads the outcomes of up to 256 comparisons at once.

A random call is drawn from a seed and from the call's number. If a call is wrong, both are printed. `--call 1234` repeats call 1234 of the
section `mixed`, if --seed, --largest and --device are the same.

soak.json has one row per section: the number of calls and of wrong results, the worst error over its bound, and seconds. The rows of
`mixed` and `streams` also have the memory before and after. A run replaces the rows of its own sections. It keeps the other rows if they
are of the same solution on the same kind of device. The exit status is 0, 1 if anything was wrong, or 2 for bad arguments.
"""

import argparse
import contextlib
import functools
import gc
import itertools
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))  # benchmark.py lies there

import benchmark  # noqa: E402

from judge.measures import elementwise_bound  # noqa: E402

measures = benchmark.measures

CALLS = {
    "devices": 8_000,
    "mixed": 100_000,
    "threads": 16_000,
    "memory": 0,
    "graphs": 10_000,
    "streams": 20_000,
    "large": 0,
    "search": 3_000,
}
SECONDS = 500.0  # a section ends early after this time
SETTLED = 256  # the host reads the outcomes of this many comparisons at once
STREAMS, THREADS, THREAD_CALLS = 4, 8, 100  # THREAD_CALLS: calls of a thread until a new thread replaces it
# After a section, the process may hold this many more bytes of device memory, although torch has released its reserve (the free memory that
# its allocator keeps). The reason is that CUDA may load kernels late.
GROWTH = 256 << 20
KINDS = [(torch.float32, False), (torch.float16, False), (torch.bfloat16, False), (torch.float64, False), (torch.float32, True)]

KERNELBENCH = [name for name, problem in measures.PRODUCTS.items() if problem.number]

# ---- The problems. ---------------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A problem: how C is computed from one or two operands. C is an M x N matrix. Each element of a product is a sum of up to K terms."""

    # `function` names the solution's function that computes C. For KernelBench's problems it is a key of measures.PRODUCTS instead, and a
    # class of the solution, such as UpperModelNew, computes C.
    function: str
    options: dict
    sides: str  # three letters for K, M and N; sides that are always equal have the same letter
    operands: str  # the rows and columns of A and of B as they are stored, such as "MK KN"; only "MK" if there is no B
    keep: tuple[Callable, ...]  # one function per operand, which keeps the part that is read, and one that keeps the part of C that exists
    by_torch: Callable  # computes C by torch from the matrices that read() returns

    def __str__(self):
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.function}({options})" if options else self.function

    def call(self, solution, *operands):
        if self.function in KERNELBENCH:
            return getattr(solution, measures.PRODUCTS[self.function].prefix + "ModelNew")()(*operands)
        return getattr(solution, self.function)(*operands, **self.options)

    def read(self, operands):
        """Returns the operands with zeros in place of elements that are not read. A unitriangular operand gets ones on its diagonal."""
        read = [keep(V) for keep, V in zip(self.keep, operands, strict=False)]
        if self.options.get("unitriangular"):
            read[0] = read[0] + torch.eye(read[0].shape[-1], dtype=read[0].dtype, device=read[0].device)
        return read

    def terms(self, sides):
        """Returns how many terms an element of C, of dA and of dB sums at most."""
        size = dict(zip("KMN", sides, strict=True))
        return [size["K"], *(size[letter] for operand in self.operands.split() for letter in "KMN" if letter not in operand)]


def every(V):
    return V


def triangle(upper, diagonal):
    return functools.partial(torch.triu if upper else torch.tril, diagonal=diagonal)


def solve(L):
    return torch.linalg.solve_triangular(L, torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L), upper=False)


def table():
    """Yields every problem that is tested. draw() chooses a function first, and then one of its problems, so that all functions are equally
    likely."""
    for name in ("lower", "upper"):
        yield Problem(name, {}, "NNN", "MK KN", (measures.PRODUCTS[name].keep,) * 3, torch.matmul)
    yield Problem("transposed_a", {}, "KMN", "KM KN", (every,) * 3, lambda A, B: A.mT @ B)
    yield Problem("lu_matmul", {}, "NNN", "MK KN", (torch.tril, torch.triu, every), torch.matmul)
    for upper, unit in itertools.product((False, True), repeat=2):
        options, keep = {"upper": upper, "unitriangular": unit}, (triangle(upper, int(unit) if upper else -unit), every, every)
        yield Problem("triangular_matmul", {**options, "left": True}, "KKN", "MK KN", keep, torch.matmul)
        yield Problem("triangular_matmul", {**options, "left": False}, "KMK", "KN MK", keep, lambda A, X: X @ A)
    for upper, diagonal in ((False, 5), (False, -40), (True, 40), (True, -5)):
        keep = (triangle(upper, diagonal), every, every)
        yield Problem("triangular_matmul", {"upper": upper, "diagonal": diagonal}, "KKN", "MK KN", keep, torch.matmul)
    for structure, keep, sides in (("dense", every, "KMM"), ("lower", torch.tril, "NNN"), ("upper", torch.triu, "NNN")):
        options = {"structure": structure}
        yield Problem("gram", {**options, "transpose": False}, sides, "MK", (keep, every), lambda X: X @ X.mT)
        yield Problem("gram", {**options, "transpose": True}, sides, "KM", (keep, every), lambda X: X.mT @ X)
    for unit in (False, True):
        yield Problem("triangular_inverse", {"unitriangular": unit}, "NNN", "MK", (triangle(False, -unit), torch.tril), solve)


PROBLEMS = {str(problem): problem for problem in table()}
FUNCTIONS = {
    problem.function: [name for name, candidate in PROBLEMS.items() if candidate.function == problem.function]
    for problem in PROBLEMS.values()
}
LARGEST_INVERSE = 256  # the largest N of an inverse, as in tests/test_family.py

# ---- A call: how it is drawn and computed. ---------------------------------------------------------------------------


class Call(NamedTuple):
    """The description of one call, from which make() draws the call's inputs. They are the same each time on the same kind of device, a
    CPU or a GPU."""

    seed: int
    number: int
    dtype: torch.dtype
    tf32: bool
    problem: str  # a key of PROBLEMS
    sides: tuple[int, int, int]  # K, M, N
    batch: tuple[int, ...]
    broadcast: bool  # whether B has no batch
    layouts: tuple[str, ...]  # the layouts of the operands and of the gradient of C
    values: str
    gradients: bool
    stream: int

    def __str__(self):
        what = f"{str(self.dtype).removeprefix('torch.')}{', TF32' * self.tf32}, {self.problem}, K, M, N = {self.sides}"
        batch = f", batch {self.batch}{', B broadcast' * self.broadcast}" if self.batch else ""
        how = f"{self.values}, {' / '.join(self.layouts)}{', with gradients' * self.gradients}"
        return f"call {self.number} of seed {self.seed}: {what}{batch}, {how}"


def between(rng, low, high):
    """Returns a random whole number from low to high. Every order of magnitude is equally likely."""
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def draw(seed, number, largest=8400, tf32=True):
    """Returns the call with this number. If `tf32` is false, no call allows TF32.

    Four of five calls draw sizes up to a sixth of `largest`, and only one of fifty draws sizes up to `largest`. With these sizes, every
    kernel that model_new.py chooses by default gets calls.
    """
    rng = random.Random(f"{seed}/{number}")
    dtype, allow_tf32 = rng.choice(KINDS if tf32 else KINDS[:4])
    problem = rng.choice(FUNCTIONS[rng.choice(list(FUNCTIONS))])
    inverse, letters = PROBLEMS[problem].function == "triangular_inverse", PROBLEMS[problem].sides
    size = rng.random()
    low, high = (1, largest // 6) if size < 0.8 else (largest // 8, largest // 2) if size < 0.98 else (largest // 2, largest)
    if inverse:
        low, high = min(low, LARGEST_INVERSE), min(high, LARGEST_INVERSE)
    low = low if letters == "NNN" else low // 8
    size_of = {letter: between(rng, max(1, low), max(1, high)) for letter in sorted({*letters})}
    sides = tuple(size_of[letter] for letter in letters)
    most_products, batch = largest**2 // 8 // max(sides) ** 2, ()
    if rng.random() < 0.3 and most_products > 1:
        count = between(rng, 2, min(most_products, 10_000))
        batch = (count,) if rng.random() < 0.7 or count < 4 else (2, count // 2)
    layouts = tuple(rng.choice(list(LAYOUTS)) for _ in PROBLEMS[problem].keep)
    hard_values = ["uniform", "outliers", "decades"] if dtype == torch.float32 and not inverse else []
    hard_values = ["smooth"] if inverse and dtype.itemsize > 2 else hard_values
    values = rng.choice(["uniform", "normal", *hard_values])
    broadcast = bool(batch) and rng.random() < 0.3 and len(layouts) == 3
    return Call(
        seed, number, dtype, allow_tf32, problem, sides, batch, broadcast, layouts, values, rng.random() < 0.1, rng.randrange(STREAMS)
    )


LAYOUTS = {
    "rows": lambda V: V.contiguous(),
    "columns": lambda V: V.mT.contiguous().mT,
    "padded rows": lambda V: within(V, (0, -V.shape[-1] % 8), slice(None)),
    "padded columns": lambda V: within(V.mT, (0, -V.shape[-2] % 8), slice(None)).mT,
    "off by one": lambda V: within(V, (1, 1), slice(1, None)),
    "steps": lambda V: within(V, (0, V.shape[-1]), slice(None, None, 2)),
    "batch last": lambda V: V.movedim(0, -1).contiguous().movedim(-1, 0) if V.dim() > 2 else V,
}


def within(V, extra, columns):
    """Returns a copy of V as a view of a larger matrix, which holds NaN elsewhere. The larger matrix has extra[0] rows above V, and
    extra[1] columns more than V. V takes the first columns that the slice `columns` selects."""
    storage = V.new_full((*V.shape[:-2], V.shape[-2] + extra[0], V.shape[-1] + extra[1]), math.nan)
    return storage[..., extra[0] :, columns][..., : V.shape[-1]].copy_(V)


def make(call, device):
    """Returns the operands and the gradient of C, which lay_out() can bring into the call's layouts. Matrices to invert are well
    conditioned, unless the call's values are `smooth`."""
    generator = torch.Generator(device).manual_seed(call.seed * 1_000_003 + call.number)
    problem, size, inputs = PROBLEMS[call.problem], dict(zip("KMN", call.sides, strict=True)), []
    for number, letters in enumerate([*problem.operands.split(), "MN"]):
        rows, cols = (size[letter] for letter in letters)
        shape = (*(() if call.broadcast and number == 1 else call.batch), rows, cols)
        V = torch.rand(shape, generator=generator, device=device) - 0.5
        if call.values == "normal":
            V = torch.randn(shape, generator=generator, device=device)
        if call.values == "outliers":
            V[..., -1, 0] = 1e-10
            V[..., rows // 2, cols // 3] *= 2.0**-22
        if number == 0 and problem.function == "triangular_inverse":
            V = V / rows**0.5 + 2 * torch.eye(rows, device=device)
            if call.values == "smooth":
                V = smooth_factor(rows, device, problem.options["unitriangular"]).expand(shape)
        inputs.append(V.to(call.dtype))
    if call.values == "decades":  # the columns of A span 16 decades; if A has few columns, pairs of float16 cannot represent it
        inputs[0] *= torch.logspace(-8, 8, inputs[0].shape[-1], device=device)
    return inputs


def smooth_factor(N, device, unit):
    """Returns the Cholesky factor of a nearly singular matrix. The matrix has the elements exp(-(x - y)^2), for N points x and y from 0 to
    5, and 1e-8 is added to its diagonal. If `unit` is true, the factor is scaled to have ones on its diagonal."""
    x = torch.linspace(0, 5, N, dtype=torch.float64, device=device)
    L = torch.linalg.cholesky(torch.exp(-((x[:, None] - x) ** 2)) + 1e-8 * torch.eye(N, dtype=torch.float64, device=device))
    return L / L.diagonal() if unit else L


NAMES = ("C", "dA", "dB")  # the results of a call


def by_torch(call, *inputs):
    """Returns {name: result} as torch computes it: C and, if the call has gradients, dA and dB. Operands are expanded to the whole batch
    first. So each product of the batch has gradients of its own, even if B is broadcast."""
    problem = PROBLEMS[call.problem]
    *operands, G = (V.expand(*call.batch, *V.shape[-2:]).detach().requires_grad_(call.gradients) for V in inputs)
    C = problem.keep[-1](problem.by_torch(*problem.read(operands)))
    gradients = torch.autograd.grad(C, operands, G) if call.gradients else ()
    return dict(zip(NAMES, (C.detach(), *gradients), strict=False))


def in_float64(call, *inputs):
    """Returns two dicts in float64: {name: result}, and {name: result for the absolute values of the operands}. Each element of a result is
    a sum of products. Its counterpart in the second dict is the sum of the magnitudes of these products. Errors are relative to that
    sum."""
    return (by_torch(call, *(transform(V.double()) for V in inputs)) for transform in (every, torch.abs))


def expected(call, *inputs):
    """Returns {name: (the result in float64, the bound of each element's error)} for C and, if the call has gradients, for dA and dB."""
    problem, eps, expectations = PROBLEMS[call.problem], torch.finfo(call.dtype).eps, {}
    if problem.function == "triangular_inverse":
        return expected_inverse(call, *inputs)
    results, magnitudes = in_float64(call, *inputs)
    for (name, exact), magnitude, terms in zip(results.items(), magnitudes.values(), problem.terms(call.sides), strict=False):
        bound = elementwise_bound(call.dtype, terms, exact, magnitude, call.tf32)
        if name == "dA" and problem.function == "gram":  # dA is a product with G + G^T, which is rounded first
            bound += eps / 2 * magnitude
        if name == "dB" and call.broadcast:  # torch sums the gradient over the batch, which rounds again
            rounding = eps + math.prod(call.batch) * min(eps, torch.finfo(torch.float32).eps)
            exact, bound = exact.flatten(0, -3).sum(0), (bound + rounding * magnitude).flatten(0, -3).sum(0)
        expectations[name] = (exact, bound)
    return expectations


INVERSE_ERRORS = {torch.float64: 2e-15, torch.float32: 1e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def expected_inverse(call, L, G):
    """Returns what expected() returns, for an inverse X = L^-1. The bound for X is proportional to |X| |L| |X|, as it is for substitution.
    The gradient dL = -X^T G X^T takes two products. Each product has its own error and inherits the errors of its operands."""
    problem = PROBLEMS[call.problem]
    (L,) = problem.read([L.double()])
    X = problem.by_torch(L)
    X_bound = INVERSE_ERRORS[call.dtype] * (X.abs() @ L.abs() @ X.abs()) + 2.0**-24 * (call.dtype == torch.float16) * X.abs().sign()

    def multiply(X, x, Y, y):  # returns X Y and its bound; x and y are the bounds of X and Y
        inherited = x @ (Y.abs() + y) + X.abs() @ y
        largest, magnitude = (X @ Y).abs() + inherited, (X.abs() + x) @ (Y.abs() + y)
        return X @ Y, inherited + elementwise_bound(call.dtype, X.shape[-1], largest, magnitude, call.tf32)

    if not call.gradients:
        return {"C": (X, X_bound)}
    G = G.double().tril()
    product = multiply(*multiply(X.mT, X_bound.mT, G, 0 * G), X.mT, X_bound.mT)
    dL, bound = (problem.keep[0](V) for V in product)
    return {"C": (X, X_bound), "dA": (-dL, bound)}


def lay_out(call, *inputs):
    """Returns the operands and the gradient of C in the call's layouts, with NaN in place of elements that must not be read."""
    laid_out = []
    for V, keep, layout in zip(inputs, PROBLEMS[call.problem].keep, call.layouts, strict=False):
        is_read = keep(torch.ones(V.shape[-2:], dtype=torch.bool, device=V.device))
        laid_out.append(LAYOUTS[layout](V.masked_fill(~is_read, math.nan)))
    return laid_out


def compute(call, solution, *laid_out):
    """Lets the solution compute the call. Returns {name: result}."""
    problem, (*operands, G) = PROBLEMS[call.problem], laid_out
    torch.set_float32_matmul_precision("high" if call.tf32 else "highest")
    try:
        if not call.gradients:
            return {"C": problem.call(solution, *operands)}
        operands = [V.detach().requires_grad_() for V in operands]
        C = problem.call(solution, *operands)
        return dict(zip(NAMES, (C.detach(), *torch.autograd.grad(C, operands, G)), strict=False))
    finally:
        if call.tf32:
            torch.set_float32_matmul_precision("highest")


# ---- The judge. ------------------------------------------------------------------------------------------------------


class Judge:
    """Compares results with the expected ones. The outcomes stay on the device until settle() reads many at once, so the host seldom
    waits."""

    def __init__(self, device):
        self.device, self.pending = torch.device(device), []
        self.comparisons, self.wrong, self.worst, self.worst_at = 0, [], 0.0, ""

    def compare(self, label, result, exact, bound, excuse=None):
        """Compares a result with `exact`. If the error exceeds the bound, settle() later calls excuse(), if there is one. excuse() returns
        the factor by which the error may exceed the bound."""
        error = (result.double() - exact).abs_()
        self.pending.append((label, torch.where(error > 0, error / bound, 0 * error).max(), excuse))  # an error of NaN stays NaN
        if len(self.pending) >= SETTLED:
            self.settle()

    def settle(self):
        if not self.pending:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # because the outcomes were computed on several streams
        pending, self.pending = self.pending, []
        self.comparisons += len(pending)
        for (label, _, excuse), excess in zip(pending, torch.stack([excess for _, excess, _ in pending]).tolist(), strict=True):
            limit = 1.0 if excess <= 1 or excuse is None else max(1.0, excuse())
            if not excess <= limit:
                self.wrong.append(f"{label}: an error of {excess:.3g} times its bound")
                print(f"WRONG  {self.wrong[-1]}", file=sys.stderr, flush=True)
            if not excess / limit <= self.worst:
                self.worst, self.worst_at = excess / limit, str(label)

    def take(self, other):
        """Adds the comparisons of another judge."""
        self.comparisons, self.wrong = self.comparisons + other.comparisons, self.wrong + other.wrong
        if not other.worst <= self.worst:
            self.worst, self.worst_at = other.worst, other.worst_at


def excuse(call, name, device):
    """Returns the factor by which the largest error of a result may exceed its bound. If the factor is less than 1, settle() uses 1. As in
    check.py, the error may be up to twice that of torch's own product, but not above the second bound of measures.allowed(). The rounding
    of a 16-bit result is added to these limits.

    Torch's own product may have large errors too, for example because tensor cores truncate 16-bit sums. The factor is 1 for float64, TF32,
    inverses and the dB of a broadcast B.
    """
    problem = PROBLEMS[call.problem]
    if call.dtype == torch.float64 or call.tf32 or problem.function == "triangular_inverse" or (name == "dB" and call.broadcast):
        return 1.0
    inputs, info = make(call, device), torch.finfo(call.dtype)
    (exact, magnitude), torch_result = (V[name] for V in in_float64(call, *inputs)), by_torch(call, *inputs)[name]
    rounding = info.eps / 2 * (call.dtype.itemsize == 2)
    excess = ((torch_result.double() - exact).abs() - rounding * exact.abs().clamp_min(info.smallest_normal)).clamp_min(0.0)
    worst = torch.where(magnitude > 0, excess / magnitude, 0.0).max().item()
    first_bound, second_bound = measures.allowed(call.dtype, dict(zip(NAMES, problem.terms(call.sides), strict=False))[name])
    return (min(2 * worst, second_bound) + rounding) / (first_bound + rounding)


def judge_call(call, solution, judge):
    """Computes a call on the current stream, and lets the judge compare its results."""
    inputs = make(call, judge.device)
    expectations = expected(call, *inputs)
    for name, result in compute(call, solution, *lay_out(call, *inputs)).items():
        judge.compare(f"{name} of {call}", result, *expectations[name], functools.partial(excuse, call, name, judge.device))


# ---- What the sections share. ----------------------------------------------------------------------------------------


class Soak:
    """Holds the solution, the device and the limits of a run."""

    def __init__(self, device, solution, seed=0, calls=None, seconds=SECONDS, largest=8400):
        self.device = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        self.solution, self.seed, self.seconds, self.largest = solution, seed, seconds, largest
        self.calls, self.started, self.solution_file = calls, time.perf_counter(), Path(solution.__file__)

    @property
    def on_gpu(self):
        return self.device.type == "cuda"

    def planned(self, section):
        return CALLS[section] if self.calls is None else min(CALLS[section], self.calls)

    def late(self):
        """Returns whether the section has used up its time."""
        return time.perf_counter() - self.started > self.seconds

    def streams(self, number=STREAMS):
        """Returns new streams, or None for each on a CPU. cuBLAS, which computes the expected results, allocates workspaces for each
        stream. This method makes it do so early, so that the workspaces do not count as memory that a section takes."""
        new_streams = [torch.cuda.Stream(self.device) if self.on_gpu else None for _ in range(number)]
        for stream in [None, *new_streams] if self.on_gpu else []:
            with on(stream):
                for dtype in (torch.float32, torch.float64):
                    V = torch.ones(2, 70, 70, dtype=dtype, device=self.device, requires_grad=True)
                    for L in (V, V[0]):  # the backward pass allocates the workspace of autograd's thread
                        (L @ L + torch.linalg.solve_triangular(L, L, upper=False)).sum().backward()
        return new_streams

    def memory(self):
        """Releases torch's reserve. Returns the bytes of device memory that torch's tensors take, and the bytes that the process holds.
        Returns None on a CPU."""
        if not self.on_gpu:
            return None
        gc.collect()
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        return {"tensors": torch.cuda.memory_allocated(self.device), "device": held_by_this_process(self.device)}


def held_by_this_process(device):
    """Returns the bytes of a GPU's memory that this process holds, as the driver counts them. If the driver does not tell processes apart,
    the bytes of all processes are returned."""
    query = ["nvidia-smi", f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}", "--query-compute-apps=pid,used_memory"]
    with contextlib.suppress(OSError, AttributeError, ValueError):
        output = subprocess.run([*query, "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
        megabytes = dict(map(int, line.split(",")) for line in output.splitlines())
        if os.getpid() in megabytes:
            return megabytes[os.getpid()] << 20
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def on(stream):
    return torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext()


def growth(before, after):
    """Returns messages about memory that a section took and did not give back."""
    if before is None:
        return []
    lines = [f"tensors hold {after['tensors'] - before['tensors']} bytes more than before"] if after["tensors"] > before["tensors"] else []
    if after["device"] > before["device"] + GROWTH:
        lines.append(f"the process holds {(after['device'] - before['device']) >> 20} MB more of the device than before")
    return lines


class Outcome(NamedTuple):
    what: str
    calls: int
    planned: int
    judge: Judge
    before: dict | None = None
    after: dict | None = None
    failures: tuple[str, ...] = ()
    details: dict | None = None


class Unavailable(Exception):
    """Raised if this machine cannot run a section."""


def need_gpu(soak):
    if not soak.on_gpu:
        raise Unavailable("it needs a CUDA GPU")


# ---- Section: mixed calls. -------------------------------------------------------------------------------------------


def mixed(soak):
    planned, judge, streams = soak.planned("mixed"), Judge(soak.device), soak.streams()
    before, number = None, 0
    while number < planned and not soak.late():
        call = draw(soak.seed, number, soak.largest)
        with on(streams[call.stream]):
            judge_call(call, soak.solution, judge)
        number += 1
        # Memory is measured after a tenth of the calls, because in these calls CUDA loads most kernels.
        if number == max(1, planned // 10):
            judge.settle()
            before = soak.memory()
    judge.settle()
    after = soak.memory() if before else None
    return Outcome("any dtype, size, layout, batch, problem and stream; gradients in a tenth", number, planned, judge, before, after)


# ---- Section: threads. -----------------------------------------------------------------------------------------------


def threads(soak):
    """Eight threads make calls at the same time. Each makes a hundred calls on a stream of its own and ends, and a new thread replaces it.
    No call allows TF32, because that setting applies to all threads."""
    planned, total = soak.planned("threads"), Judge(soak.device)
    lock, state, failures = threading.Lock(), {"next": 0, "done": 0, "before": None}, []

    def work(numbers):
        judge, number = Judge(soak.device), numbers[0]
        try:
            with on(soak.streams(1)[0]):
                for number in numbers:
                    if soak.late():
                        break
                    judge_call(draw(soak.seed + 1, number, soak.largest // 2, tf32=False), soak.solution, judge)
                    with lock:
                        state["done"] += 1
                judge.settle()
        except Exception as error:
            failures.append(f"a thread ended at call {number} of seed {soak.seed + 1}: {type(error).__name__}: {error}")
        with lock:
            total.take(judge)

    def take():
        while not soak.late() and not failures:
            with lock:
                numbers = range(state["next"], min(planned, state["next"] + THREAD_CALLS))
                state["next"] = numbers.stop
            if not numbers:
                return
            thread = threading.Thread(target=work, args=(numbers,))
            thread.start()
            thread.join()

    soak.streams(0)  # loads torch's solver in this thread, because torch fails if several threads load it at once
    takers = [threading.Thread(target=take) for _ in range(THREADS)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    what = f"{THREADS} threads at a time, each with a stream of its own, and a new thread for every {THREAD_CALLS} calls"
    return Outcome(what, state["done"], planned, total, failures=tuple(failures))


# ---- Section: memory. ------------------------------------------------------------------------------------------------

STEP = 2 << 20  # bytes; torch's allocator asks the driver for multiples of this
# (dtype, problem, N, batch, layout). All calls compute gradients. The smallest call allocates little besides its results. Other calls also
# allocate workspaces, packed operands, and copies of operands that tensor maps cannot describe.
MEMORY_CALLS = [
    (torch.float32, "lower", 300, (), "rows"),
    (torch.float32, "lower", 1500, (), "rows"),
    (torch.float32, "upper", 1500, (2,), "columns"),
    (torch.float16, "lower", 1501, (), "rows"),
    (torch.bfloat16, "upper", 2201, (), "steps"),
    (torch.float16, "transposed_a", 3001, (), "off by one"),
    (torch.float64, "lower", 901, (), "rows"),
]


def take_reserve(device, total):
    """Returns tensors that fill torch's reserve. A further allocation then has to ask the driver for memory."""
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved(device) / total, device)
    taken, size = [], 1 << 30
    while size >= 512:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.cuda.OutOfMemoryError:
            size //= 2
    return taken


def memory(soak):
    """Repeats each call with a rising limit on the memory that torch may ask the driver for, from zero in steps of 2 MB. So each request to
    the driver that a call makes fails at least once."""
    need_gpu(soak)
    judge, failures, calls, refused = Judge(soak.device), [], 0, 0
    total = torch.cuda.get_device_properties(soak.device).total_memory
    for number, (dtype, problem, N, batch, layout) in enumerate(MEMORY_CALLS):
        call = Call(soak.seed, number, dtype, False, problem, (N,) * 3, batch, False, (layout,) * 3, "uniform", True, 0)
        inputs = make(call, soak.device)
        expectations, laid_out = expected(call, *inputs), lay_out(call, *inputs)
        baseline = {name: result.clone() for name, result in compute(call, soak.solution, *laid_out).items()}
        judge.settle()
        for name, result in baseline.items():
            judge.compare(f"{name} of {call}", result, *expectations[name], functools.partial(excuse, call, name, soak.device))
        judge.settle()
        limit, successes = 0, 0
        while successes < 2 and not soak.late():  # until the call has succeeded with two limits
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            allocated = torch.cuda.memory_allocated()
            taken = take_reserve(soak.device, total)
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + limit) / total, soak.device)
            try:
                results = compute(call, soak.solution, *laid_out)
                torch.cuda.synchronize()
                successes += 1
            except torch.cuda.OutOfMemoryError:
                results, refused = None, refused + 1
            except RuntimeError as error:
                results = None
                failures.append(f"{call}, with {limit >> 20} MB: {type(error).__name__}: {error}")
            finally:
                torch.cuda.set_per_process_memory_fraction(1.0, soak.device)
                taken.clear()
            del results
            gc.collect()
            deadline = time.monotonic() + 1
            while torch.cuda.memory_allocated() > allocated and time.monotonic() < deadline:
                time.sleep(0.01)  # autograd's thread may still be releasing the tensors of the failed call
            if torch.cuda.memory_allocated() > allocated:
                failures.append(f"{call}, with {limit >> 20} MB: {torch.cuda.memory_allocated() - allocated} bytes were not given back")
            for name, result in compute(call, soak.solution, *laid_out).items():  # without a limit, it must repeat `baseline`
                judge.compare(
                    f"{name} of {call} after {limit >> 20} MB", result, baseline[name].double(), torch.zeros_like(expectations[name][1])
                )
            judge.settle()
            calls, limit = calls + 2, limit + STEP
    if not refused:
        failures.append("no call was refused memory")
    what = f"{len(MEMORY_CALLS)} calls with gradients, each with every limit on memory that it meets: {refused} refused"
    return Outcome(what, calls, calls, judge, failures=tuple(failures), details={"refused": refused})


# ---- Section: graphs. ------------------------------------------------------------------------------------------------

GRAPHS = [  # dtype, problem, sides, batch, gradients
    (torch.float32, "lower", (300,) * 3, (), True),
    (torch.float32, "lower", (1000,) * 3, (), True),
    (torch.float32, "lower", (1500,) * 3, (), True),
    (torch.float32, "upper", (1300,) * 3, (3,), True),
    (torch.float32, "transposed_a", (1000, 900, 1100), (), False),
    (torch.float16, "lower", (700,) * 3, (), True),
    (torch.float16, "lower", (1501,) * 3, (), True),
    (torch.bfloat16, "upper", (3585,) * 3, (), True),
    (torch.float16, "transposed_a", (4200, 640, 700), (), False),
    (torch.float64, "lower", (900,) * 3, (), True),
    (torch.float16, "lu_matmul", (1501,) * 3, (), True),
    (torch.float32, "gram(structure='dense', transpose=False)", (1000, 900, 900), (), True),
]


def captured(call, soak, stream):
    """Captures a call as a CUDA graph. Returns the graph's static operands with the gradient of C, the graph, and its static results."""
    operands = make(call, soak.device)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3):
            compute(call, soak.solution, *operands)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = compute(call, soak.solution, *operands)
    return operands, graph, results


def graphs(soak):
    """Launches two graphs of each call in turns, on two streams, so that they may run at the same time. Between launches, other work on
    these streams allocates and writes memory."""
    need_gpu(soak)
    planned, judge, done = soak.planned("graphs"), Judge(soak.device), 0
    launches_per_call = max(2, planned // len(GRAPHS))
    for number, (dtype, problem, sides, batch, gradients) in enumerate(GRAPHS):
        call = Call(soak.seed, number, dtype, False, problem, sides, batch, False, ("rows",) * 3, "uniform", gradients, 0)
        streams = soak.streams(2)
        pairs = [captured(call._replace(stream=graph_index), soak, stream) for graph_index, stream in enumerate(streams)]
        operands = graph = results = None
        generators = [torch.Generator(soak.device).manual_seed(soak.seed + graph_index) for graph_index in range(2)]
        for replay in range(launches_per_call):
            if soak.late():
                break
            graph_index = replay % 2
            operands, graph, results = pairs[graph_index]
            with torch.cuda.stream(streams[graph_index]):
                for V in operands:
                    V.uniform_(-0.5, 0.5, generator=generators[graph_index])
                graph.replay()
                expectations = expected(call, *operands)
                for name, result in results.items():
                    judge.compare(f"{name} of launch {replay} of the graph of {call}", result, *expectations[name])
                del expectations
                torch.full_like(operands[0], math.nan)
            done += 1
        judge.settle()
        del pairs, operands, graph, results
        gc.collect()
    return Outcome(f"{len(GRAPHS)} calls, two graphs of each, new inputs for each launch", done, launches_per_call * len(GRAPHS), judge)


# ---- Section: streams. -----------------------------------------------------------------------------------------------


def streams(soak):
    """One stream makes operands, a second one multiplies them, and a third one compares the results. In two of three calls the second
    stream is also the first or the third one. The operands are freed as soon as the product is launched. Then NaN is written to new tensors
    of their shapes, which must not get the operands' memory too early."""
    need_gpu(soak)
    planned, judge, all_streams, number = soak.planned("streams"), Judge(soak.device), soak.streams(), 0
    before = None
    while number < planned and not soak.late():
        call = draw(soak.seed + 2, number, soak.largest // 4)
        maker, multiplier, reader = (all_streams[(number + step) % STREAMS] for step in (0, number % 3, 1 + number % 2))
        with torch.cuda.stream(maker):
            inputs = make(call, soak.device)
            expectations, laid_out = expected(call, *inputs), lay_out(call, *inputs)
        multiplier.wait_stream(maker)
        with torch.cuda.stream(multiplier):
            for V in laid_out:
                V.record_stream(multiplier)
            results = compute(call, soak.solution, *laid_out)
        shapes = [V.shape for V in laid_out]
        del inputs, laid_out
        for stream in (maker, multiplier):
            with torch.cuda.stream(stream):  # if the operands' memory is reused too early, these writes spoil the product
                for shape in shapes:
                    torch.full(shape, math.nan, dtype=call.dtype, device=soak.device)
        reader.wait_stream(multiplier)
        reader.wait_stream(maker)
        with torch.cuda.stream(reader):
            for name, result in results.items():
                for V in (result, *expectations[name]):
                    V.record_stream(reader)
                judge.compare(f"{name} of {call}", result, *expectations[name], functools.partial(excuse, call, name, soak.device))
        del results, result, expectations, V
        number += 1
        if number == max(1, planned // 10):
            judge.settle()
            before = soak.memory()
    judge.settle()
    after = soak.memory() if before else None
    return Outcome("operands made on one stream, multiplied on another, compared on a third", number, planned, judge, before, after)


# ---- Section: large sizes, strides and batches. ----------------------------------------------------------------------


def compare_parts(judge, label, result, X, Y, keep, dtype, elements):
    """Compares a result with X Y, in parts of at most `elements` elements if possible. A part has some rows of C, or some products of a
    batch. A triangular X or Y holds zeros outside its triangle. keep(part, first) masks a part that begins at row `first` of C."""
    batched = result.dim() > 2
    step = max(1, elements // (result[0].numel() if batched else max(X.shape[-1], result.shape[-1])))
    y = None if batched else Y.double()
    y_magnitude = None if batched else y.abs()
    for start in range(0, result.shape[0], step):
        part = slice(start, start + step)
        x = X[part].double()
        y_part = Y.double() if Y.dim() == 2 else Y[part].double() if batched else y
        first = 0 if batched else start
        exact = keep(x @ (y_part if batched else y), first)
        magnitude = keep(x.abs() @ (y_part.abs() if batched else y_magnitude), first)
        bound = elementwise_bound(dtype, X.shape[-1], exact, magnitude)
        judge.compare(f"{label}, from {'product' if batched else 'row'} {start} on", result[part], exact, bound)
        del exact, magnitude, bound
        judge.settle()  # reports a wrong part before the next one is computed


def far_apart(V, strides, soak):
    """Returns a copy of V with these strides, in elements."""
    storage = torch.empty(
        1 + sum((size - 1) * stride for size, stride in zip(V.shape, strides, strict=True)), dtype=V.dtype, device=V.device
    )
    return storage.as_strided(V.shape, strides).copy_(V)


def large(soak):
    full = soak.on_gpu
    judge, done, timings = Judge(soak.device), 0, {}
    generator = torch.Generator(soak.device).manual_seed(soak.seed)

    def uniform(*shape, dtype):
        return torch.empty(shape, dtype=dtype, device=soak.device).uniform_(-0.5, 0.5, generator=generator)

    elements = 2**26 if full else 2**12
    lower, upper, every = (lambda V, first: V.tril(first)), (lambda V, first: V.triu(first)), (lambda V, first: V)

    def giant(dtype, N):
        A, B, G = (uniform(N, N, dtype=dtype) for _ in range(3))
        P, Q = A.requires_grad_(), B.requires_grad_()
        C = soak.solution.ModelNew()(P, Q)
        A, B, plain = A.detach(), B.detach(), C.detach()
        compare_parts(judge, f"C of N = {N}, {dtype}", plain, A.tril(), B.tril(), lower, dtype, elements)
        dA, dB = torch.autograd.grad(C, (P, Q), G)
        del C, plain
        compare_parts(judge, f"dA of N = {N}, {dtype}", dA, G.tril(), B.tril().mT, lower, dtype, elements)
        compare_parts(judge, f"dB of N = {N}, {dtype}", dB, A.tril().mT, G.tril(), lower, dtype, elements)

    def distant(dtype, shape, strides, label):
        A, B = (uniform(*shape, dtype=dtype) for _ in range(2))
        for operands, name in (((far_apart(A, strides, soak), B), "A"), ((A, far_apart(B, strides, soak)), "B")):
            C = soak.solution.ModelNew()(*operands)
            compare_parts(judge, f"C of {shape}, {dtype}, {name} with {label}", C, A.tril(), B.tril(), lower, dtype, elements)
            C = soak.solution.UpperModelNew()(*operands)
            compare_parts(judge, f"upper C of {shape}, {dtype}, {name} with {label}", C, A.triu(), B.triu(), upper, dtype, elements)
            del operands, C

    def wide_result(dtype, K, M, N):
        A, B = uniform(K, M, dtype=dtype), uniform(K, N, dtype=dtype)
        C = soak.solution.TransposedAModelNew()(A, B)
        compare_parts(judge, f"A^T B of {K} x {M} and {K} x {N}, {dtype}", C, A.mT, B, every, dtype, elements)

    def many(dtype, batch, N, broadcast):
        A, B = uniform(batch, N, N, dtype=dtype), uniform(*(() if broadcast else (batch,)), N, N, dtype=dtype)
        C = soak.solution.ModelNew()(A, B)
        label = f"C of {batch} x {N} x {N}, {dtype}{', B broadcast' * broadcast}"
        compare_parts(judge, label, C, A.tril(), B.tril(), lambda V, first: V.tril(), dtype, elements)

    N = 32768 if full else 200
    cases = [functools.partial(giant, dtype, N) for dtype in (torch.float16, torch.float32)]
    far = 2**21 if full else 400
    for dtype, n in ((torch.float16, 2049), (torch.bfloat16, 1200), (torch.float32, 1300), (torch.float32, 1100), (torch.float64, 1060)):
        n, stride = (n, far + 8) if full else (n // 20, far)
        cases.append(functools.partial(distant, dtype, (n, n), (stride, 1), "rows far apart"))
        cases.append(functools.partial(distant, dtype, (n, n), (1, stride), "columns far apart"))
    for dtype in (torch.float16, torch.float32):
        n, stride = (300, 2**31 + 8) if full else (30, 5000)
        cases.append(functools.partial(distant, dtype, (3, n, n), (stride, n + n % 8, 1), "products far apart"))
    cases.append(functools.partial(wide_result, torch.float16, 64, *((50_000, 50_000) if full else (300, 200))))
    cases.append(functools.partial(wide_result, torch.float32, 8, *((2**17, 2**14 + 8) if full else (300, 200))))
    batch = 100_000 if full else 1000
    for dtype, n in ((torch.float32, 5), (torch.float32, 64), (torch.float16, 64), (torch.float16, 150), (torch.float64, 20)):
        for broadcast in (False, True):
            cases.append(functools.partial(many, dtype, batch, n if full else min(n, 12), broadcast))
    for run in cases:
        if soak.late():
            break
        start = time.perf_counter()
        run()
        done += 1
        timings[" ".join(map(str, (run.func.__name__, *run.args)))] = round(time.perf_counter() - start, 2)
        if soak.on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
    sizes = "elements 2^31 apart, batches of 10^5" if full else "the same layouts and batches, but smaller"
    return Outcome(f"N = {N}, {sizes}, all elements", done, len(cases), judge, details={"seconds": timings})


# ---- Section: the search for large errors. ---------------------------------------------------------------------------


def changed(best, N, number, generator):
    """Returns the next candidate: one value for A and one for B, for each of the N values of k. Each of the first 50 candidates is drawn
    anew, from numbers of 24 bits in [1, 2), which may repeat with a period. In some of them only every n-th k has values that are not zero.
    A later candidate changes some values of `best`, the best candidate so far."""

    def pick(*choices):
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    period = min(N, pick(1, 16, 64, N))
    candidate = 1 + torch.randint(2**23, (2, period), generator=generator) * 2.0**-23
    candidate = candidate.repeat(1, -(-N // period))[:, :N] * (torch.arange(N) % pick(1, 1, 4, 16, 64) == 0)
    if number < 50:
        return candidate
    where = torch.rand(period, generator=generator) < pick(1 / 64, 1 / 8, 1.0)
    where = where.repeat(-(-N // period))[:N] & (torch.arange(N) >= pick(0, 0, N // 2))
    return torch.where(where, pick(candidate, best, best * 2, 1 + (best * pick(3, 5, 7)) % 1), best)


def search(soak):
    """Searches for operands with a large error. Within the triangles, A has the same values a in each row, and B has the same values b in
    each column. Element (i, j) of the product is then the sum of a[k] b[k] over k = j..i, so one product has the sums over every range of
    k."""
    sizes = (300, 1000, 1500, 4096, 8192) if soak.on_gpu else (100, 200)
    judge, done, planned, details = Judge(soak.device), 0, soak.planned("search") // len(sizes) * len(sizes), {}

    def operands(values):
        a, b = values.to(soak.device)
        return a.expand(len(a), -1).tril(), b[:, None].expand(-1, len(b)).tril()

    def error_of(C, exact):
        return torch.where(exact > 0, (C.double() - exact).abs() / exact, 0.0).max().item()

    for N in sizes:
        generator, best, worst = torch.Generator().manual_seed(soak.seed + N), None, (0.0, {})
        first_bound = measures.allowed(torch.float32, N)[0]
        for number in range(planned // len(sizes)):
            if soak.late():
                break
            values = changed(best, N, number, generator).float()
            A, B = operands(values)
            C, exact = soak.solution.ModelNew()(A, B), (A.double() @ B.double()).tril()  # no term is negative: exact is also |A| |B|
            error, reference = error_of(C, exact), error_of((A @ B).tril(), exact)
            if not (of_bound := error / max(first_bound, 2 * reference)) <= worst[0]:
                best, worst = values, (of_bound, {"error": error, "reference": reference, "of its bound": of_bound})
            judge.compare(f"C of N = {N}, call {number}", C, exact, first_bound * exact, lambda factor=2 * reference / first_bound: factor)
            done += 1
        if best is not None:
            details[f"N = {N}"] = worst[1]
    judge.settle()
    return Outcome("float32 operands whose error was made to grow, all sums of them", done, planned, judge, details=details)


# ---- Section: two devices. -------------------------------------------------------------------------------------------

FIRST_CALLS = [  # (dtype, N, how): the first call of a process, on cuda:1 while the current device is cuda:0
    (torch.float16, 1500, "forward"),
    (torch.float16, 1500, "backward"),
    (torch.bfloat16, 4000, "in a thread"),
    (torch.float32, 1500, "backward"),
    (torch.float32, 600, "in a thread"),
    (torch.float64, 900, "backward"),
]
TRAININGS = [("DDP", torch.float32), ("DDP", torch.bfloat16), ("FSDP", torch.float32), ("fully_shard", torch.float32)]
STEPS, RATE = 3, 0.1


def sum_in_float32():
    """Makes torch sum its own 16-bit products in float32, as the solution does. Otherwise excuse() would allow too large errors."""
    matmul = torch.backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False


def first_call(file, device, number, seed):
    """Makes a first call, in a process of its own. The process ends with status 1 if a result is wrong or missing."""
    sum_in_float32()
    dtype, N, how = FIRST_CALLS[number]
    solution, judge = benchmark.load(file), Judge(device)
    call = Call(seed, number, dtype, False, "lower", (N,) * 3, (), False, ("rows",) * 3, "uniform", how != "forward", 0)
    if how == "in a thread":
        thread = threading.Thread(target=judge_call, args=(call, solution, judge))
        thread.start()
        thread.join()
    else:
        judge_call(call, solution, judge)
    judge.settle()
    sys.exit(0 if judge.comparisons == (1 if how == "forward" else 3) and not judge.wrong else 1)


class Tiny(torch.nn.Module):
    """A module with two parameters A and B. The solution computes their product, which multiplies the input."""

    def __init__(self, solution, N, dtype, device):
        super().__init__()
        generator = torch.Generator().manual_seed(N)
        self.A, self.B = (torch.nn.Parameter((torch.rand(N, N, generator=generator) / N**0.5).to(device, dtype)) for _ in range(2))
        self.product = solution.ModelNew()

    def forward(self, x):
        return self.product(self.A, self.B) @ x


class Exact:
    """Takes the place of the solution in a Tiny, and computes the product by torch. Such a Tiny is trained in float64. Its parameters are
    the reference for trainings with the solution."""

    class ModelNew(torch.nn.Module):
        def forward(self, A, B):
            return A.tril() @ B.tril()


def steps(model, inputs, scale, number):
    """Runs gradient descent, and returns the loss of each step."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    for _ in range(number):
        optimizer.zero_grad()
        loss = model(inputs).square().sum() * scale
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(rank, world, folder, file, device, kind, dtype, N):
    """Each process runs this function, which trains twice. The first training is in float64, in this process alone, with the inputs of all
    processes. The second training is by DDP or FSDP, together with the other processes. Process 0 writes the relative error of the second
    training's parameters to a file: see training_error."""
    import torch.distributed as distributed
    from torch.distributed import fsdp

    os.environ["NCCL_NVLS_ENABLE"] = "0"  # no NVLink multicast, which not every host allows
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
        device = f"cuda:{rank}"
    distributed.init_process_group("nccl" if on_gpu else "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    number = STEPS if dtype == torch.float32 else 1
    inputs = [torch.rand(N, 8, generator=torch.Generator().manual_seed(r)).to(device, dtype) for r in range(world)]
    exact = Tiny(Exact, N, dtype, device).double()
    steps(exact, torch.cat(inputs, -1).double(), 1 / (8 * world * N), number)
    model = Tiny(benchmark.load(Path(file)), N, dtype, device)
    if kind == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank] if on_gpu else None)
    elif kind == "FSDP":
        model = fsdp.FullyShardedDataParallel(model, use_orig_params=True, device_id=rank if on_gpu else None)
    else:
        fsdp.fully_shard(model)
    steps(model, inputs[rank], 1 / (8 * N), number)
    with fsdp.FullyShardedDataParallel.summon_full_params(model) if kind == "FSDP" else contextlib.nullcontext():
        trained = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        start = Tiny(Exact, N, dtype, device).double()
        moves = [(e - s, p.detach().double() - s) for e, s, p in zip(exact.parameters(), start.parameters(), trained, strict=True)]
        error = max(((o - e).norm() / e.norm()).item() for e, o in moves)  # relative to the exact move
    if rank == 0:
        Path(folder, "error").write_text(repr(error))
    distributed.destroy_process_group()


def training_error(file, device, kind, dtype, N, world=2):
    """Trains in several processes, and in one process in float64. Returns |trained - exact| / |exact - start| in Frobenius norms, for that
    one of the two parameters A and B for which it is larger. `exact` is the parameter after the training in float64, and `start` the same
    parameter before it."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (world, folder, str(file), device, kind, dtype, N), nprocs=world)
        return float(Path(folder, "error").read_text())


def devices(soak):
    if not soak.on_gpu or torch.cuda.device_count() < 2:
        raise Unavailable("it needs two CUDA GPUs")
    planned, judge, failures, details = soak.planned("devices"), Judge("cuda:1"), [], {}
    spawn = torch.multiprocessing.get_context("spawn")
    children = [spawn.Process(target=first_call, args=(soak.solution_file, "cuda:1", n, soak.seed)) for n in range(len(FIRST_CALLS))]
    for child in children:
        child.start()
    for child, (dtype, N, how) in zip(children, FIRST_CALLS, strict=True):
        child.join()
        if child.exitcode:
            failures.append(f"the first call of a process, {how}, {dtype}, N = {N}, on cuda:1: its process ended with {child.exitcode}")
    # The operands of these calls are on cuda:1. A quarter of the calls have no stream and run while the current device is cuda:0. In the
    # other calls torch.cuda.stream() makes cuda:1 the current device.
    streams, done = [None, *(torch.cuda.Stream("cuda:1") for _ in range(3))], 0
    while done < planned // 2 and not soak.late():
        call = draw(soak.seed + 3, done, soak.largest // 2)
        with on(streams[call.stream]):
            judge_call(call, soak.solution, judge)
        done += 1
    judge.settle()
    if torch.cuda.current_device() != 0:
        failures.append(f"the current device is {torch.cuda.current_device()} after calls on cuda:1; it was 0")
    # Two threads make calls at the same time, one thread per device.
    judges, counts = [Judge(f"cuda:{device}") for device in range(2)], [0, 0]

    def work(device):
        try:
            for number in range(planned // 4):
                if soak.late():
                    break
                judge_call(draw(soak.seed + 4 + device, number, soak.largest // 2, tf32=False), soak.solution, judges[device])
                counts[device] += 1
            judges[device].settle()
        except Exception as error:
            failures.append(f"the thread of cuda:{device} ended at call {counts[device]}: {type(error).__name__}: {error}")

    workers = [threading.Thread(target=work, args=(device,)) for device in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for device_judge in judges:
        judge.take(device_judge)
    for kind, dtype in TRAININGS:
        name = f"{kind}, {str(dtype).removeprefix('torch.')}"
        error = details[name] = training_error(soak.solution_file, "cuda", kind, dtype, 1500)
        if not error <= (1e-4 if dtype == torch.float32 else 0.05):
            failures.append(f"{name}: two processes are {error:.2e} away from one in float64")
    what = "first calls and mixed calls on cuda:1, a thread for each device, DDP and FSDP"
    return Outcome(what, done + sum(counts), planned // 2 + 2 * (planned // 4), judge, failures=tuple(failures), details=details)


# ---- The record. -----------------------------------------------------------------------------------------------------

SECTIONS = {"mixed": mixed, "threads": threads, "memory": memory, "graphs": graphs, "streams": streams, "large": large}
SECTIONS |= {"search": search, "devices": devices}


def run_section(name, soak, record, description):
    """Runs a section, and puts its row into the record in place of an earlier one. A skipped section leaves the record as it is."""
    print(f"\n== {name}", flush=True)
    soak.started = time.perf_counter()
    try:
        outcome = SECTIONS[name](soak)
    except Unavailable as reason:
        print(f"   skipped: {reason}", flush=True)
        return
    finally:
        torch.set_float32_matmul_precision("highest")
    judge, failures = outcome.judge, [*outcome.failures, *growth(outcome.before, outcome.after)]
    if outcome.calls < outcome.planned and soak.calls is None:
        failures.append(f"{outcome.calls} of {outcome.planned} calls, for want of time")
    row = {
        "section": name,
        "what": outcome.what,
        "calls": outcome.calls,
        "planned": outcome.planned,
        "comparisons": judge.comparisons,
        "wrong": len(judge.wrong),
        "worst_error_of_bound": judge.worst,
        "worst_at": judge.worst_at,
        "memory_before": outcome.before,
        "memory_after": outcome.after,
        "seconds": round(time.perf_counter() - soak.started, 1),
        **{key: description[key] for key in ("device", "commit", "solution_sha256", "date")},
        "details": outcome.details,
    }
    record.content["rows"] = [earlier_row for earlier_row in record.content["rows"] if earlier_row["section"] != name]
    memory_text = ""
    if outcome.before:
        memory_text = f", memory {outcome.before['tensors']} to {outcome.after['tensors']} bytes in tensors"
    record.add(
        row,
        f"   {row['calls']} of {row['planned']} calls, {row['comparisons']} results, {row['wrong']} wrong, the worst at"
        f" {row['worst_error_of_bound']:.3f} of its bound ({row['worst_at']}){memory_text}, {row['seconds']} s",
    )
    for line in [*judge.wrong, *failures]:
        record.fail(f"{name}: {line}")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument(
        "--calls", type=benchmark.positive, metavar="N", help="make at most N calls per section, except in memory and large"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"end a section early after this time (default {SECONDS:.0f})")
    parser.add_argument(
        "--largest", type=benchmark.positive, metavar="N", help="the largest size that is drawn (default 8400; on a CPU 200)"
    )
    parser.add_argument("--call", type=int, metavar="NUMBER", help="make only the call of this number in the section mixed")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that is drawn (default 0)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results",
        metavar="DIR",
        help="the folder of soak.json (default: benchmarks/results)",
    )
    parser.add_argument("--commit", help="the commit to record, if git cannot tell it")
    parser.add_argument(
        "--solution", type=Path, default=ROOT / "model_new.py", metavar="FILE", help="the file to test (default: model_new.py)"
    )
    options = parser.parse_args(arguments)
    if options.seconds <= 0:
        parser.error(f"argument --seconds: {options.seconds} is given; accepted: more than 0")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: 'cuda' is given, and torch sees no GPU; accepted without one: 'cpu'")
    if not options.solution.is_file():
        parser.error(f"argument --solution: {options.solution} is no file; accepted: a Python file with what model_new.py has")
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    torch.set_float32_matmul_precision("highest")
    sum_in_float32()
    bench = benchmark.Bench(options.device, options.solution, seed=options.seed)
    largest = options.largest or (8400 if options.device == "cuda" else 200)
    soak = Soak(options.device, bench.solution, options.seed, options.calls, options.seconds, largest)
    if options.call is not None:
        judge = Judge(soak.device)
        judge_call(draw(soak.seed, options.call, soak.largest), soak.solution, judge)
        judge.settle()
        print(f"{draw(soak.seed, options.call, soak.largest)}: {len(judge.wrong)} wrong, {judge.worst:.3f} of the bound")
        return 1 if judge.wrong else 0
    description = benchmark.environment(bench, options.commit)
    record = benchmark.Record("soak", description, options.out)
    record.content["rows"] = benchmark.earlier_rows(record.path, description)
    for name in dict.fromkeys(options.section):
        run_section(name, soak, record, description)
    record.content["complete"] = True
    record.write()
    failures = record.content["failures"]
    print(f"\n{len(failures)} failed; written to {record.path}", *failures, sep="\n  ", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
