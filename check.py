"""The referee: is a solution right, is it honest, and how fast is it?

    python check.py                                     judges model_new.py against reference_model.py, both beside this file
    python check.py --problem upper                     the upper triangular product; transposed_a: A.T @ B
    python check.py --solution theirs.py                anybody's KernelBench-style file
    python check.py --size 256 --no-timing              a few seconds on a small machine
    python check.py --problem upper --export file.py    writes model_new.py as KernelBench wants problem 14; runs nothing

Exit status: 0 all holds; 1 something is wrong with the solution (also: it raises while it is loaded or run); 2 the run could not
be made (bad option, missing file or name, no such GPU, not enough memory, a reference that does not compute the problem).

Files. Both are read as text and exec-ed, as KernelBench does. A reference has Model and get_inputs, a solution has ModelNew; a file
for several problems has UpperModel, UpperModelNew, get_inputs_upper, and TransposedAModel, TransposedAModelNew,
get_inputs_transposed_a, which are preferred where they exist. The reference's get_init_inputs() gives the constructors' arguments.
A solution that defines `tril_matmul` promises the contract of model_new.py. What that contract promises beyond KernelBench's
problem (say, that the other triangle is not read) is a failure for such a solution and a note, printed all the same, for any other.

Accuracy. Truth is a float64 product of what the problem reads. (For float64 inputs: sums of exact float64 products of slices of the
inputs, Ozaki's scheme, kept as a pair of float64.) The error of an element is |C - truth| / (|A||B|), the componentwise error, u is
the unit roundoff of the dtype, n the number of terms. Every element has to meet

    float32           max(1e-6, 2 x the reference's worst error on the same input)
    float64           the same with 1e-6 * 2^-29, which is as many units of float64's roundoff as 1e-6 is of float32's
    float16/bfloat16  |C - truth| <= u |truth| + e |A||B|: the rounding of a right result, plus an accumulation in float32 with
                      e = max(2^-23 sqrt(n), 2 x what the reference needs); tensor cores truncate, hence 2^-23 and not 2^-24

The reference may loosen no bound beyond 16 sqrt(n) u (two units for the 16-bit types): it would not be a reference. Where |A||B| is
above the dtype's largest number a partial sum may overflow, and the element is not judged. Where a product may lie under the
smallest normal number of float32 (within a factor of 4), each term may be lost: n times that number is allowed. A result below it
may be flushed to zero. Inputs of integers with exactly representable sums allow no error at all. On uniform inputs KernelBench's own
criterion is tested besides: allclose to the reference at 1e-4, for the 16-bit types 1e-2.

Conduct. Before each call freed memory is filled with the byte 255, which is NaN in every dtype, so that what is not written shows. On
a GPU this fills the blocks of torch's caching allocator; on a CPU torch itself fills each tensor that torch.empty makes (memory from
malloc escapes that). Results must not share memory with inputs or earlier results, inputs must stay bitwise as they were, and
results must follow when the inputs change behind the same pointers.

Timing. Reference and solution take turns in one run. On a GPU: CUDA events, 256 MB written before each call (a cold L2, as KernelBench
does), poisoned memory, and A negated in place before each turn; the outputs of the last two turns, of opposite signs, are checked in
full. On a CPU: the process clock, for at most about five seconds each. Medians, with the 10th and 90th percentile.

`--json FILE` records everything (replaced atomically). `--export FILE` refuses to overwrite a file.
"""

import argparse
import ast
import contextlib
import datetime
import functools
import hashlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
TESTED_SIZES = (1, 2, 63, 64, 65, 127, 129, 200, 257, 640, 1000)  # tiles are multiples of 16 to 128: most of these fit none
TESTED_SHAPES = (  # of A.T @ B, as (K, M, N): short and long sums, tall, wide, and sizes that no tile divides
    *((1, 1, 1), (1, 63, 65), (2, 3, 1), (63, 64, 65), (64, 64, 64), (65, 127, 129), (129, 200, 1), (257, 200, 63)),
    *((640, 64, 640), (1000, 3, 257), (3, 1000, 129), (200, 33, 1000), (1000, 257, 640)),
)
FLUSH_BYTES = 256 << 20  # KernelBench's; five times the largest L2 there is
CPU_SECONDS = 5.0  # of timing for each of the two on a CPU
EXTRA_MEMORY = 1.1  # N x N matrices beyond the result that the contract allows ...
EXTRA_MEMORY_FROM = 4096  # ... from this N on; below, padding and fixed workspaces weigh more than the matrices


class CannotRun(Exception):
    """The run could not be made, and nothing is said about the solution: exit 2."""


class Wrong(Exception):
    """The solution fails. `contract`: only by the contract of model_new.py, so that it is a note for any other solution."""

    def __init__(self, message, contract=False):
        super().__init__(message)
        self.contract = contract


class DeviceLost(Wrong):
    """The GPU's context does not survive the solution's error, so nothing more can be checked."""


# ======================================================================================================================
# 1. The problems
# ======================================================================================================================


def _everything(X):
    return X


@dataclass(frozen=True)
class Problem:
    name: str
    number: int  # in KernelBench's level 1
    formula: str
    prefix: str  # of the class names
    suffix: str  # of get_inputs
    keep: Callable  # the part of a matrix that exists; the rest is not read, or zero in a result

    @property
    def triangular(self):
        return self.keep is not _everything

    def headline(self, size):
        """The dimensions that --size stands for: (N,), or (K, M, N) in the proportions of KernelBench's problem 16."""
        return (size,) if self.triangular else (size, max(1, size // 4), max(1, size // 2))

    def tested(self, size):
        every = [(N,) for N in TESTED_SIZES] if self.triangular else TESTED_SHAPES
        return [dims for dims in every if max(dims) <= size and dims != self.headline(size)]

    def shapes(self, dims):
        """Of A and B."""
        if self.triangular:
            return (dims[0], dims[0]), (dims[0], dims[0])
        K, M, N = dims
        return (K, M), (K, N)

    def factors(self, A, B):
        """X and Y such that C = keep(X @ Y), with nothing in them that the problem does not read."""
        return (self.keep(A), self.keep(B)) if self.triangular else (A.mT, B)

    def gradient_factors(self, A, B, G):
        """The same for dA and for dB, where G is the gradient with respect to C."""
        if not self.triangular:
            return (B, G.mT), (A, G)
        A, B, G = self.keep(A), self.keep(B), self.keep(G)
        return (G, B.mT), (A.mT, G)

    def flops(self, dims):
        """Useful floating-point operations: a multiplication and an addition for each term that exists."""
        if self.triangular:
            return dims[0] * (dims[0] + 1) * (dims[0] + 2) / 3
        return 2 * math.prod(dims)

    def elements(self, dims):
        """How many elements of the inputs exist, and how many the result has (its zeros are written too)."""
        if self.triangular:
            return dims[0] * (dims[0] + 1), dims[0] ** 2
        K, M, N = dims
        return K * (M + N), M * N


PROBLEMS = {
    p.name: p
    for p in (
        Problem("lower", 15, "C = tril(A) tril(B)", "", "", torch.tril),
        Problem("upper", 14, "C = triu(A) triu(B)", "Upper", "_upper", torch.triu),
        Problem("transposed_a", 16, "C = A.T B", "TransposedA", "_transposed_a", _everything),
    )
}


def label(dims):
    return "x".join(map(str, dims))


# ======================================================================================================================
# 2. Loading
# ======================================================================================================================


@dataclass
class Contender:
    path: str
    text: str
    names: dict
    model: torch.nn.Module
    class_name: str

    @property
    def promises_contract(self):
        return "tril_matmul" in self.names

    @property
    def sha256(self):
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_text(path, option):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRun(f"{option} {path}: cannot be read ({error}); a Python file is accepted") from None


def describe(error):
    """An error and the line of the file at fault that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != os.path.abspath(__file__)]
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def load(path, text):
    # No __file__ and no __name__, as in KernelBench. The file's name is given for tracebacks and inspect.getsource (Triton needs it).
    names = {}
    exec(compile(text, os.path.abspath(path), "exec"), names)
    return names


def build_model(names, path, option, class_names, arguments, device):
    found = next((name for name in class_names if name in names), None)
    if found is None:
        raise CannotRun(f"{option} {path}: defines no class {' or '.join(dict.fromkeys(class_names))}")
    return names[found](*arguments).to(device), found


def load_reference(path, problem, device):
    option = "--reference"
    text = read_text(path, option)
    try:
        names = load(path, text)
        if not any(callable(names.get(f"get_inputs{suffix}")) for suffix in (problem.suffix, "")):
            raise CannotRun(f"{option} {path}: defines no function get_inputs")
        arguments = names["get_init_inputs"]() if "get_init_inputs" in names else []
        model, name = build_model(names, path, option, (f"{problem.prefix}Model", "Model"), arguments, device)
    except (CannotRun, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise CannotRun(f"{option} {path}: raises while it is loaded: {describe(error)}") from error
    return Contender(path, text, names, model, name), arguments


def load_solution(path, text, problem, arguments, device):
    option = "--solution"
    try:
        names = load(path, text)
        model, name = build_model(names, path, option, (f"{problem.prefix}ModelNew", "ModelNew"), arguments, device)
    except (CannotRun, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: a solution may not end the referee
        raise Wrong(f"the solution raises while it is loaded: {describe(error)}") from error
    return Contender(path, text, names, model, name)


# ======================================================================================================================
# 3. Inputs
# ======================================================================================================================


class Draw:
    """Random float64 matrices on the device. Each check draws from its own stream, so that a seed repeats it whatever else runs."""

    def __init__(self, seed, name, device):
        self.device = device
        self.generator = torch.Generator(device).manual_seed((seed ^ zlib.crc32(name.encode())) & 0x7FFFFFFFFFFFFFFF)

    def uniform(self, *shape):
        return torch.rand(*shape, dtype=torch.float64, device=self.device, generator=self.generator)

    def normal(self, *shape):
        return torch.randn(*shape, dtype=torch.float64, device=self.device, generator=self.generator)

    def integers(self, low, high, *shape):
        return torch.randint(low, high + 1, shape, device=self.device, generator=self.generator).double()

    def decades(self, span, *shape):
        """10^U(-span, span)"""
        return 10.0 ** (span * (2 * self.uniform(*shape) - 1))


# Each makes A and B in float64 from a Draw, their shapes and the dtype; what the problem does not read is masked away afterwards.


def _uniform(draw, a, b, dtype):
    return draw.uniform(*a), draw.uniform(*b)


def _normal(draw, a, b, dtype):
    return draw.normal(*a), draw.normal(*b)


def _signed(draw, a, b, dtype):
    return 2 * draw.uniform(*a) - 1, 2 * draw.uniform(*b) - 1


def _integers(draw, a, b, dtype):
    # Terms up to limit^2, so that a sum of K of them needs no bit that the accumulator lacks. 4 keeps float16 from overflowing.
    bits = {torch.float64: 53, torch.float32: 24}.get(dtype)
    limit = 4 if bits is None else max(1, math.isqrt(2**bits // max(1, a[0])))
    return draw.integers(-limit, limit, *a), draw.integers(-limit, limit, *b)


def _sparse(draw, a, b, dtype):
    return tuple(draw.normal(*shape) * (draw.uniform(*shape) < 0.02) for shape in (a, b))


def _identity(draw, a, b, dtype):
    return torch.eye(*a, dtype=torch.float64, device=draw.device), draw.normal(*b)


def _elimination(draw, a, b, dtype):
    """Products of these are what LU without pivoting multiplies: ones on the diagonal, one column (and row) of wild multipliers."""
    made = []
    for place, (rows, cols) in ((3, a), (2, b)):
        X = torch.eye(rows, cols, dtype=torch.float64, device=draw.device)
        at = min(rows, cols) // place
        X[at:, at] = draw.normal(rows - at) * draw.decades(2 if dtype in (torch.float16, torch.bfloat16) else 8, rows - at)
        X[at, at:] = draw.normal(cols - at) * draw.decades(2 if dtype in (torch.float16, torch.bfloat16) else 8, cols - at)
        X[at, at] = 1
        made.append(X)
    return made


def _unit(draw, a, b, dtype):
    """Ones on the diagonal and multipliers of at most 1, as LU with pivoting leaves them."""
    made = _signed(draw, a, b, dtype)
    for X in made:
        X.diagonal().fill_(1)
    return made


def _cholesky(draw, a, b, dtype):
    """Factors L of Gaussian-kernel Gram matrices, whose pivots fall to the 1e-8 that keeps them positive definite."""
    made = []
    for rows, cols in (a, b):
        x = draw.uniform(max(rows, cols)).cpu().sort().values
        gram = torch.exp(-(((x[:, None] - x) / 0.1) ** 2) / 2)
        gram.diagonal().add_(1e-8)
        L = torch.linalg.cholesky(gram)
        # Its transpose stands above the diagonal, so that an upper triangular problem finds a factor too.
        made.append((L + L.tril(-1).mT)[:rows, :cols].to(draw.device))
    return made


def _lognormal(draw, a, b, dtype):
    return torch.exp(3 * draw.normal(*a)), torch.exp(3 * draw.normal(*b))


def _scaled(which, along, span):
    def make(draw, a, b, dtype):
        made = [draw.normal(*a), draw.normal(*b)]
        rows, cols = made[which].shape
        made[which] *= draw.decades(span, rows, 1) if along == "rows" else draw.decades(span, 1, cols)
        return made

    return make


def _graded(draw, a, b, dtype):
    """The index that is summed over graded from 1e-15 to 1e15 in A, and inversely in B: every term is of ordinary size."""
    K = b[0]
    grade = 10.0 ** torch.linspace(-15, 15, K, dtype=torch.float64, device=draw.device)
    A, B = draw.normal(*a), draw.normal(*b)
    return (A * grade if a[0] == a[1] == K else A * grade[:, None]), B / grade[:, None]


def _about(scale_a, scale_b):
    def make(draw, a, b, dtype):
        return scale_a * (0.5 + draw.uniform(*a)) * draw.normal(*a).sign(), scale_b * (0.5 + draw.uniform(*b)) * draw.normal(*b).sign()

    return make


def _near_overflow(draw, a, b, dtype):
    scale = math.sqrt(torch.finfo(torch.float32).max / (16 * max(1, a[0])))  # of 1e17 and more; |A||B| stays just below the largest number
    return scale * draw.normal(*a), scale * draw.normal(*b)


def _single(value):
    def make(draw, a, b, dtype):
        A, B = draw.normal(*a), draw.normal(*b)
        for X, (p, q) in ((A, (3, 5)), (B, (2, 7))):
            rows, cols = X.shape
            X[rows - 1 - rows // p, cols // q] = value  # one of these two lies in the triangle, whichever it is
            X[rows // q, cols - 1 - cols // p] = value
        return A, B

    return make


@dataclass(frozen=True)
class Distribution:
    make: Callable
    wide: bool = False  # needs the exponent range of float32: not for the 16-bit types
    float32_only: bool = False  # about the ends of float32's range
    exact: bool = False  # every term and sum is representable: no error is allowed
    kernelbench: bool = False  # what KernelBench draws, so its criterion applies


ORDINARY = {
    "uniform": Distribution(_uniform, kernelbench=True),
    "normal": Distribution(_normal),
    "signed": Distribution(_signed),
}
HARD = {
    "integers": Distribution(_integers, exact=True),
    "sparse": Distribution(_sparse),
    "identity A": Distribution(_identity),
    "elimination": Distribution(_elimination),
    "unit diagonal": Distribution(_unit),
    "Cholesky, near singular": Distribution(_cholesky),
    "rows of A over 2 decades": Distribution(_scaled(0, "rows", 1)),
    "lognormal, sigma 3": Distribution(_lognormal, wide=True),
    "rows of A over 16 decades": Distribution(_scaled(0, "rows", 8), wide=True),
    "columns of A over 16": Distribution(_scaled(0, "columns", 8), wide=True),
    "rows of B over 16": Distribution(_scaled(1, "rows", 8), wide=True),
    "columns of B over 16": Distribution(_scaled(1, "columns", 8), wide=True),
    "graded inversely 1e+-15": Distribution(_graded, wide=True),
    "one tiny entry": Distribution(_single(1e-30), wide=True),
    "one huge entry": Distribution(_single(1e30), wide=True),
    "near overflow": Distribution(_near_overflow, float32_only=True),
    "about 1e18 and 1e-20": Distribution(_about(1e18, 1e-20), float32_only=True),
    "about 1e-20": Distribution(_about(1e-20, 1e-20), float32_only=True),
    "denormals and 1e10": Distribution(_about(1e-39, 1e10), float32_only=True),
}
DISTRIBUTIONS = ORDINARY | HARD


def suits(distribution, dtype):
    if distribution.float32_only:
        return dtype == torch.float32
    return not (distribution.wide and dtype in (torch.float16, torch.bfloat16))


# ======================================================================================================================
# 4. Truth and errors
# ======================================================================================================================


def slices(X, along, bits):
    """X (float64) as a sum of parts with at most `bits` bits below the leading one of the largest element `along` a dimension."""
    parts, rest = [], X.clone()
    while bool(rest.any()):
        largest = rest.abs().amax(along, keepdim=True)
        mantissa, _ = torch.frexp(largest)
        unit = torch.where(largest > 0, largest / mantissa, 1.0) * 2.0**-bits  # largest / mantissa is a power of two, exactly
        unit.clamp_min_(5e-324)  # the smallest number there is: nothing lies below it
        parts.append(torch.round(rest / unit) * unit)
        rest -= parts[-1]
    return parts


def exact_product(X, Y):
    """X @ Y as a pair of float64 (high, low); low is None where float64 products of narrower inputs leave nothing to correct."""
    if X.dtype != torch.float64:
        return X.double() @ Y.double(), None
    # A sum of n products of two b-bit numbers is exact in float64 while 2 b + log2 n <= 53 (Ozaki et al., Numer. Algorithms 59, 2012).
    bits = (53 - max(1, X.shape[-1]).bit_length()) // 2
    high = X.new_zeros(X.shape[0], Y.shape[1])
    low = high.clone()
    y_parts = slices(Y, 0, bits)
    for x in slices(X, 1, bits):
        for y in y_parts:
            part = x @ y
            total = high + part  # Knuth's two-sum: the rounding error of high + part is kept in low
            back = total - high
            low += (high - (total - back)) + (part - back)
            high = total
    return high, low


def may_underflow(X, Y):
    """Where keep(X @ Y) has a product under float32's smallest normal number, within a factor of 4; None if nowhere."""
    if min(X.numel(), Y.numel()) == 0:
        return None
    # |x| < 2^e_x and |x| >= 2^(e_x - 1), so a product is at least 2^(e_x + e_y - 2); the smallest normal number is 2^-126.
    (x_exponent, x_there), (y_exponent, y_there) = ((torch.frexp(Z.double())[1], Z != 0) for Z in (X, Y))
    if not (bool(x_there.any()) and bool(y_there.any())):
        return None
    lowest_y = int(y_exponent[y_there].min())
    hits = None
    for e in torch.unique(x_exponent[x_there]).tolist():
        if e + lowest_y - 2 < -126:
            rows, cols = (x_exponent == e) & x_there, (y_exponent < -124 - e) & y_there
            found = rows.float() @ cols.float() > 0.5
            hits = found if hits is None else hits | found
    return hits


@dataclass
class Truth:
    """What a product should be, and by what an element may be off. All float64 (m, n)."""

    high: torch.Tensor
    low: torch.Tensor | None
    magnitude: torch.Tensor  # |A||B|
    forgiven: torch.Tensor | float  # absolute: the rounding of 16-bit results, and what underflow may take
    judged: torch.Tensor | None  # where no partial sum can overflow; None: everywhere
    terms: int
    dtype: torch.dtype
    keep: Callable
    exact: bool = False

    @classmethod
    def of(cls, X, Y, keep, exact=False):
        dtype, terms = X.dtype, X.shape[-1]
        info = torch.finfo(dtype)
        high, low = exact_product(X, Y)
        magnitude = keep(X.double().abs() @ Y.double().abs())
        high, low = keep(high), None if low is None else keep(low)
        forgiven = 0.0
        if exact:  # what is left is one rounding to the result's dtype
            high = high.to(dtype).double()
        elif dtype == torch.float32:
            hits = may_underflow(X, Y)
            tiny = (high != 0) & (high.abs() < info.smallest_normal)
            if hits is not None:
                forgiven = hits.double().mul_(terms * info.smallest_normal) + tiny.double().mul_(info.smallest_normal)
            elif bool(tiny.any()):
                forgiven = tiny.double().mul_(info.smallest_normal)
        elif dtype != torch.float64:
            # Half a unit in the last place: info.eps / 2 of a normal number, half the spacing of the denormal ones.
            forgiven = (high.abs() * (info.eps / 2)).clamp_min_(info.smallest_normal * info.eps / 2)
        judged = magnitude <= info.max
        return cls(high, low, magnitude, forgiven, None if bool(judged.all()) else judged, terms, dtype, keep, exact)

    def errors(self, C):
        """The componentwise error of each element of C; Inf where an element is NaN or Inf and should not be."""
        off = C.detach().double() - self.high
        if self.low is not None:
            off -= self.low
        off = off.abs_().sub_(self.forgiven).clamp_min_(0).nan_to_num_(nan=math.inf, posinf=math.inf)
        relative = torch.where(self.magnitude > 0, off / self.magnitude, torch.where(off > 0, math.inf, 0.0))
        relative = self.keep(relative) if relative.numel() else relative
        return relative if self.judged is None else torch.where(self.judged, relative, 0.0)

    def bound(self, reference_worst):
        """What the worst componentwise error may be; the manual derives it."""
        if self.exact:
            return 0.0
        root, u = math.sqrt(max(1, self.terms)), torch.finfo(self.dtype).eps / 2
        if self.dtype in (torch.float16, torch.bfloat16):
            floor, most = root * 2.0**-23, 2 * torch.finfo(self.dtype).eps
        else:
            floor, most = 1e-6 * (u / 2.0**-24), 16 * root * u
        return max(floor, min(2 * reference_worst, most))

    def is_no_reference(self, worst):
        """Whether so large an error, on ordinary inputs, says that the reference computes something else (or in TF32)."""
        u = torch.finfo(self.dtype).eps / 2
        return worst > (4 * u if self.dtype in (torch.float16, torch.bfloat16) else 16 * math.sqrt(max(1, self.terms)) * u)


def worst_of(errors):
    """The largest error and its coordinates."""
    if errors.numel() == 0:
        return 0.0, None
    at = int(errors.argmax())
    return float(errors.flatten()[at]), divmod(at, errors.shape[1])


@dataclass
class Comparison:
    reference_error: float
    error: float
    bound: float
    unjudged: int
    fault: str | None  # the worst element in words, where it is above the bound

    @property
    def numbers(self):
        return {k: getattr(self, k) for k in ("reference_error", "error", "bound", "unjudged")}


def compare(C, R, truth, name="C"):
    """The solution's C and the reference's R against the truth."""
    reference_error, _ = worst_of(truth.errors(R))
    errors = truth.errors(C)
    error, at = worst_of(errors)
    bound = truth.bound(reference_error)
    unjudged = 0 if truth.judged is None else int((~truth.judged).sum())
    fault = None
    if not error <= bound:
        i, j = at
        fault = (
            f"worst element {name}[{i}, {j}] = {float(C[i, j]):.9g}, exact {float(truth.high[i, j]):.9g}, reference {float(R[i, j]):.9g};"
            f" its error is {error:.2e} of (|A||B|)[{i}, {j}] = {float(truth.magnitude[i, j]):.3g}, allowed {bound:.2e}; the reference's"
            f" worst error is {reference_error:.2e}; {int((errors > bound).sum())} of {errors.numel()} elements are above the bound"
        )
    return Comparison(reference_error, error, bound, unjudged, fault)


def by_definition(problem, A, B):
    """The product term by term in float64, with the terms that exist and no others: NaN and Inf stand where the sums put them."""
    X, Y = (A.double(), B.double()) if problem.triangular else (A.mT.double(), B.double())
    k = torch.arange(X.shape[1], device=A.device)
    j = torch.arange(Y.shape[1], device=A.device)
    rows = []
    for i in range(X.shape[0]):
        there = torch.ones(len(k), len(j), dtype=torch.bool, device=A.device)
        if problem.name == "lower":
            there = (k[:, None] <= i) & (k[:, None] >= j)
        elif problem.name == "upper":
            there = (k[:, None] >= i) & (k[:, None] <= j)
        rows.append(torch.where(there, X[i, :, None] * Y, 0.0).sum(0))
    return torch.stack(rows)


# ======================================================================================================================
# 5. Calls under poison
# ======================================================================================================================


def poison(device, *results, thorough=True):
    """Leave freed memory full of the byte 255 (a NaN in every floating-point dtype, -1 as an integer), so that what lands there and is
    not written shows. `results`: the bytes of each result. `thorough`: also where small results and workspaces land."""
    # Three blocks of exactly a result's size, for the result and what is as large; two larger ones, for padded copies and workspaces.
    sizes = [size for size in set(results) for _ in range(3)] + [max(results) * 9 // 8, 2 * max(results)]
    if thorough:
        sizes += [1 << p for p in range(9, 21)] * 2
        if device.type == "cuda":
            torch.cuda.empty_cache()  # hand back what is free now, or the allocator may choose that and not the poisoned blocks
    blocks = [torch.empty(max(1, size), dtype=torch.uint8, device=device) for size in sizes]
    for block in blocks:
        block.fill_(255)


@contextlib.contextmanager
def poisoned(device, *results):
    """Poisoned memory for one call. On a CPU freed memory often goes back to the system and returns as zeros, so there torch's own
    debugging aid fills every tensor that is made without values."""
    poison(device, *results)
    if device.type == "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill


def bits(X):
    """The same memory as integers, so that equal means bitwise equal, NaN included."""
    return X.detach().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[X.element_size()])


def same_bits(X, Y):
    return X.shape == Y.shape and X.dtype == Y.dtype and torch.equal(bits(X), bits(Y))


def first_difference(X, Y):
    i, j = (int(v) for v in (bits(X) != bits(Y)).nonzero()[0])
    return f"[{i}, {j}]: {float(X[i, j]):.9g} and {float(Y[i, j]):.9g}"


def share_memory(X, Y):
    (a, a_bytes), (b, b_bytes) = ((Z.untyped_storage().data_ptr(), Z.untyped_storage().nbytes()) for Z in (X, Y))
    return a_bytes > 0 and b_bytes > 0 and a < b + b_bytes and b < a + a_bytes


def leaves(*matrices):
    return [X.detach().clone().requires_grad_() for X in matrices]


@dataclass
class Run:
    """One solution, one reference, and how they are to be compared."""

    problem: Problem
    size: int
    dtype: torch.dtype
    device: torch.device
    seed: int
    reference: Contender
    solution: Contender
    report: "Report"
    timings: dict = field(default_factory=dict)

    @property
    def cuda(self):
        return self.device.type == "cuda"

    @property
    def dims(self):
        return self.problem.headline(self.size)

    @property
    def hard_sizes(self):
        """Where hard inputs are tried: on a GPU at two sizes, since fast paths begin somewhere; small enough for a CPU on one."""
        if self.cuda:
            return [N for N in (1000, 2048) if self.size >= N] or [self.size]
        return [min(257, self.size)]

    def small(self, *most):
        """The dimensions for small sizes, each once, none above --size."""
        return list(dict.fromkeys(self.problem.headline(min(size, self.size)) for size in most))

    def fill_unread(self, X, junk):
        """X where a matrix of the problem exists, `junk` (a number or a matrix) elsewhere."""
        return torch.where(self.problem.keep(torch.ones_like(X)) != 0, X, junk)

    def inputs(self, name, dims, purpose=""):
        shapes = self.problem.shapes(dims)
        draw = Draw(self.seed, f"{self.problem.name} {name} {label(dims)} {purpose}", self.device)
        return [self.problem.keep(X).to(self.dtype).contiguous() for X in DISTRIBUTIONS[name].make(draw, *shapes, self.dtype)]

    def result_shape(self, A, B):
        return (A.shape[-1] if not self.problem.triangular else A.shape[-2], B.shape[-1])

    def truth(self, A, B, exact=False):
        return Truth.of(*self.problem.factors(A, B), self.problem.keep, exact)

    def solve(self, A, B, grad=False):
        """The solution's product, in poisoned memory, checked for form."""
        shape = self.result_shape(A, B)
        with poisoned(self.device, math.prod(shape) * A.element_size()):
            C = self.guarded(lambda: self.solution.model(A, B), grad)
        self.check_form(C, A, B, shape)
        return C

    @functools.cached_property
    def differentiable(self):
        """Whether the result requires a gradient when an input does."""
        (dims,) = self.small(65)
        try:
            return self.solve(*leaves(*self.inputs("normal", dims, "differentiable")), grad=True).requires_grad
        except DeviceLost:
            raise
        except Wrong:  # KernelBench calls a solution without gradients only
            return False

    def guarded(self, call, grad=False):
        """Call the solution; whatever it raises is its own fault."""
        try:
            with torch.set_grad_enabled(grad):
                value = call()
            if self.cuda:
                torch.cuda.synchronize(self.device)  # a kernel's fault surfaces here, not in the referee's own next call
            return value
        except (KeyboardInterrupt, torch.cuda.OutOfMemoryError):  # who took the memory cannot be told: the run is not made
            raise
        except BaseException as error:
            lost = False
            if self.cuda:
                try:
                    torch.cuda.synchronize(self.device)
                except Exception:
                    lost = True
            message = f"the solution raises {describe(error)}"
            raise (DeviceLost if lost else Wrong)(message) from error

    def check_form(self, C, A, B, shape):
        if type(C) is not torch.Tensor:
            raise Wrong(f"the result is a {type(C).__module__}.{type(C).__qualname__}, not a plain torch.Tensor")
        for what, is_, should in (
            ("shape", tuple(C.shape), tuple(shape)),
            ("dtype", C.dtype, A.dtype),
            ("device", C.device, A.device),
            ("layout", C.layout, torch.strided),
        ):
            if is_ != should:
                raise Wrong(f"the result's {what} is {is_}, and should be {should}")
        for name, X in (("A", A), ("B", B)):
            if share_memory(C, X):
                raise Wrong(f"the result shares memory with the input {name}")

    def refer(self, A, B, grad=False):
        try:
            torch.set_float32_matmul_precision("highest")  # the solution may have changed it
            with torch.set_grad_enabled(grad):
                return self.reference.model(A, B)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            raise CannotRun(f"--reference {self.reference.path}: raises {describe(error)}") from error

    def explain(self, A, B):
        """Which path the solution says it takes, where it can say."""
        if "explain" not in self.solution.names:
            return None
        try:
            said = dict(self.guarded(lambda: self.solution.names["explain"](A, B, problem=self.problem.name)))
        except DeviceLost:
            raise
        except (Wrong, TypeError, ValueError) as error:
            return {"path": f"explain failed: {error}"}
        return {k: v.item() if isinstance(v, torch.Tensor) and v.numel() == 1 else v for k, v in said.items()}


# ======================================================================================================================
# 6. Checks of the result
# ======================================================================================================================


def check_zeros(run, C):
    beyond = run.fill_unread(torch.zeros_like(C), C) != 0
    if bool(beyond.any()):
        i, j = (int(v) for v in beyond.nonzero()[0])
        side = "above" if run.problem.name == "lower" else "below"
        raise Wrong(f"C[{i}, {j}] = {float(C[i, j]):.9g} {side} the diagonal, where exact zeros belong")


def check_row(run, name, A, B, row):
    """One input: form, inputs unmodified, every element, zeros, KernelBench's criterion. Fills `row` with what it finds."""
    distribution = DISTRIBUTIONS[name]
    kept = [A.clone(), B.clone()]
    C = run.solve(A, B)
    for which, X, before in (("A", A, kept[0]), ("B", B, kept[1])):
        if not same_bits(X, before):
            raise Wrong(f"the input {which} is modified, first at {first_difference(before, X)}")
    row.update(explained=run.explain(A, B))
    R = run.refer(A, B)
    truth = run.truth(A, B, distribution.exact)
    found = compare(C, R, truth)
    row.update(found.numbers)
    if name in ORDINARY and truth.is_no_reference(found.reference_error):
        raise CannotRun(
            f"--reference {run.reference.path}: its componentwise error on {name} inputs is {found.reference_error:.1e};"
            f" it does not compute {run.problem.formula} in {run.dtype}, or it is made to use TF32"
        )
    if found.fault:
        raise Wrong(found.fault)
    check_zeros(run, C)
    if distribution.kernelbench:
        tolerance = 1e-2 if run.dtype in (torch.float16, torch.bfloat16) else 1e-4
        if not torch.allclose(C, R, atol=tolerance, rtol=tolerance):
            raise Wrong(f"KernelBench's criterion fails: not allclose to the reference at atol = rtol = {tolerance}")
        row["kernelbench"] = tolerance


def rows_to_check(run):
    """(distribution, dimensions) of the table's rows. Small sizes take the ordinary distributions in turn."""
    names = list(ORDINARY)
    for n, dims in enumerate(run.problem.tested(run.size)):
        yield names[n % len(names)], dims
        if n % len(names):
            yield "uniform", dims  # so that KernelBench's own criterion meets every size
    for name in ORDINARY:
        yield name, run.dims
    for size in run.hard_sizes:
        for name, distribution in HARD.items():
            if suits(distribution, run.dtype):
                yield name, run.problem.headline(size)


def table_of_inputs(run):
    report = run.report
    report.stage("every element on fresh inputs")
    report.line()
    report.line(f"{'input':<26} {'size':>14}  {'reference':>9}  {'solution':>9}  {'allowed':>9}  verdict  path")
    for name, dims in rows_to_check(run):
        report.progress(f"{name}, {label(dims)}")
        row = {"size": label(dims)}
        verdict, detail = run_check(run, lambda name=name, dims=dims, row=row: check_row(run, name, *run.inputs(name, dims), row))
        report.row(name, row, verdict, detail)
    report.line("errors are the worst |C - truth| / (|A||B|), for 16-bit types what remains of it beyond the result's rounding")


def check_own_inputs(run):
    """What the reference's get_inputs() gives, as KernelBench calls it."""
    names, problem = run.reference.names, run.problem
    get_inputs = names.get(f"get_inputs{problem.suffix}", names.get("get_inputs"))
    try:
        inputs = list(get_inputs())
    except Exception as error:
        raise CannotRun(f"--reference {run.reference.path}: get_inputs() raises {describe(error)}") from error
    if len(inputs) != 2 or not all(isinstance(X, torch.Tensor) and X.dim() == 2 for X in inputs):
        raise CannotRun(f"--reference {run.reference.path}: get_inputs() does not give two matrices")
    A, B = (X.to(run.device, run.dtype) for X in inputs)
    dims = (A.shape[0],) if problem.triangular else (A.shape[0], A.shape[1], B.shape[1])
    if (tuple(A.shape), tuple(B.shape)) != problem.shapes(dims):
        raise CannotRun(f"--reference {run.reference.path}: get_inputs() gives shapes {tuple(A.shape)}, {tuple(B.shape)}")
    if max(dims) > run.size:
        return None
    if not bool(A.isfinite().all() & B.isfinite().all()):
        raise CannotRun(f"--reference {run.reference.path}: get_inputs() gives NaN or Inf in {run.dtype}")
    row = {}
    check_row(run, "uniform", A, B, row)
    return f"{label(dims)}: error {row['error']:.1e}, the reference's {row['reference_error']:.1e}, KernelBench's allclose holds"


# ======================================================================================================================
# 7. Checks of conduct
# ======================================================================================================================

# Each takes the run, returns what it saw in words (None: does not apply) and raises Wrong.


def require(run, C, A, B, when):
    """C is right, by every element."""
    found = compare(C, run.refer(A, B), run.truth(A, B))
    if found.fault:
        raise Wrong(f"{when}: {found.fault}")
    check_zeros(run, C)


def check_repeats(run):
    done = []
    for dims, runs in ({run.dims: 3} | dict.fromkeys(run.small(257), 10)).items():
        A, B = run.inputs("normal", dims, "repeats")
        first = run.solve(A, B)
        for n in range(1, runs):
            again = run.solve(A, B)
            if not same_bits(first, again):
                raise Wrong(f"{label(dims)}: run {n + 1} differs from the first at C{first_difference(again, first)}")
        done.append(f"{runs} runs at {label(dims)}")
    return ", ".join(done)


def check_follows(run):
    """Results follow when the inputs change behind the same pointers, and no result is taken back."""
    rounds = 6
    for dims in run.small(257, *((1000,) if run.cuda else ())):
        A, B = run.inputs("normal", dims, "follows")
        earlier = []
        for n in range(rounds):
            if n == 1 or n == 4:  # everything, without a trace in the tensors' version counters
                for X, new in zip((A, B), run.inputs("signed", dims, f"follows {n}"), strict=True):
                    X.data.copy_(new)
            elif n:  # one element, so that no sample of the content tells; the corner that every problem reads
                X = A if n % 2 else B
                row = X.shape[0] - 1 if run.problem.name != "upper" else 0
                X[row, X.shape[1] // 2] += 16
            C = run.solve(A, B)
            require(run, C, A, B, f"{label(dims)}, call {n + 1} with the same pointers and new content")
            for m, (result, copy) in enumerate(earlier):
                if share_memory(C, result):
                    raise Wrong(f"{label(dims)}: the result of call {n + 1} shares memory with that of call {m + 1}")
                if not same_bits(result, copy):
                    raise Wrong(f"{label(dims)}: call {n + 1} overwrites the result of call {m + 1}")
            earlier.append((C, C.clone()))
    return f"{rounds} calls with the same pointers; each result right, apart and left alone"


def check_unread(run):
    """What fills the other triangle makes no difference."""
    if not run.problem.triangular:
        return None
    for dims in run.small(257, 1000):
        A, B = run.inputs("normal", dims, "unread")
        C = run.solve(A, B)
        for junk in (math.nan, math.inf, 1.0):
            D = run.solve(run.fill_unread(A, junk), run.fill_unread(B, junk))
            if not same_bits(C, D):
                raise Wrong(f"{label(dims)}: with {junk} in the other triangle of the inputs C changes, first at {first_difference(D, C)}")
    return "NaN, Inf and 1 in the other triangle change no bit"


def check_specials(run):
    """NaN and Inf come out where the sum over the terms that exist puts them, and nowhere else."""
    seen = 0
    for dims in run.small(65, 200, *((1000,) if run.cuda else ())):
        for special in ((math.nan,), (math.inf, -math.inf), (math.nan, math.inf, -math.inf)):
            A, B = run.inputs("normal", dims, f"specials {len(special)}")
            draw = Draw(run.seed, f"places {dims} {special}", run.device)
            for X in (A, B):
                for value in special:
                    i, j = int(draw.integers(0, X.shape[0] - 1, 1)), int(draw.integers(0, X.shape[1] - 1, 1))
                    if run.problem.triangular:
                        i, j = (max(i, j), min(i, j)) if run.problem.name == "lower" else (min(i, j), max(i, j))
                    X[i, j] = value
            T = by_definition(run.problem, A, B)
            C = run.solve(A, B).double()
            finite = T.isfinite()
            pattern = (C.isnan() == T.isnan()) & (torch.where(finite, 0.0, T.nan_to_num()) == torch.where(finite, 0.0, C.nan_to_num()))
            # What is finite needs to be right as well: with the special values replaced by zeros its terms are the same.
            calm = [torch.where(X.isfinite(), X, 0.0) for X in (A, B)]
            truth = run.truth(*calm)
            bound = truth.bound(worst_of(truth.errors(run.refer(*calm)))[0])
            good = pattern & (~finite | (truth.errors(C) <= bound))
            if not bool(good.all()):
                i, j = (int(v) for v in (~good).nonzero()[0])
                raise Wrong(
                    f"{label(dims)}, inputs with {', '.join(map(str, special))}: C[{i}, {j}] = {float(C[i, j]):.9g},"
                    f" and the sum of its terms is {float(T[i, j]):.9g}"
                )
            seen += int((~finite).sum())
    return f"{seen} NaN and Inf, each where the sum puts it"


def check_strides(run):
    (dims,) = run.small(257)
    A, B = run.inputs("normal", dims, "strides")
    wide = torch.full((A.shape[0], 2 * A.shape[1] + 3), math.nan, dtype=A.dtype, device=A.device)
    wide[:, 3::2] = A
    for how, X, Y in (
        ("transposed views", A.mT.contiguous().mT, B.mT.contiguous().mT),
        ("every other column of a slice", wide[:, 3::2], B),
    ):
        require(run, run.solve(X, Y), A, B, how)
    return "transposed views and strided slices"


def check_empty(run):
    shapes = [(0,)] if run.problem.triangular else [(0, 5, 7), (5, 0, 7), (5, 7, 0)]
    for dims in shapes:
        a, b = run.problem.shapes(dims)
        A, B = (torch.zeros(shape, dtype=run.dtype, device=run.device) for shape in (a, b))
        C = run.solve(A, B)
        if bool((C != 0).any()):
            raise Wrong(f"{label(dims)}: an empty sum is not zero")
    return "sizes of 0"


def check_side_stream(run):
    """Everything happens on the current stream, in order: inputs that are not there yet when the call is made, a result that is
    consumed at once. Streams of torch do not wait for the default stream."""
    if not run.cuda:
        return None
    (dims,) = run.small(1000)
    old, new = run.inputs("signed", dims, "old"), run.inputs("normal", dims, "new")
    A, B = (X.clone() for X in old)
    side = torch.cuda.Stream(run.device)
    side.wait_stream(torch.cuda.current_stream(run.device))
    with torch.cuda.stream(side), torch.no_grad():
        run.guarded(lambda: run.solution.model(A, B))  # what a first call on a stream sets up takes time of its own
        poison(run.device, math.prod(run.result_shape(A, B)) * A.element_size())
        torch.cuda.synchronize(run.device)
        torch.cuda._sleep(200_000_000)  # clock cycles, about 0.1 s
        slept = torch.cuda.Event()
        slept.record(side)
        A.copy_(new[0]), B.copy_(new[1])
        try:
            C = run.solution.model(A, B)
            waited = slept.query()
            consumed = C.clone()
        except Exception as error:
            raise Wrong(f"on a side stream the solution raises {describe(error)}") from error
    side.synchronize()
    run.check_form(C, A, B, run.result_shape(A, B))
    require(run, consumed, *new, "on a side stream, with inputs made there just before")
    torch.cuda.synchronize(run.device)
    if waited:
        raise Wrong("the call synchronises the host with the GPU", contract=True)
    return f"{label(dims)}: inputs and result in the order of the stream, and the host never waits"


def check_graph(run):
    if not run.cuda:
        return None
    (dims,) = run.small(1000)
    A, B = run.inputs("normal", dims, "graph")
    new = run.inputs("signed", dims, "graph")

    def capture():
        side = torch.cuda.Stream(run.device)
        side.wait_stream(torch.cuda.current_stream(run.device))
        with torch.cuda.stream(side):
            run.solution.model(A, B)
        torch.cuda.synchronize(run.device)
        generator = torch.cuda.default_generators[run.device.index]
        spare = generator.clone_state()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                C = run.solution.model(A, B)
        except BaseException:
            generator.graphsafe_set_state(spare)  # a capture that failed left the other state in the belief that it goes on
            raise
        return graph, C

    graph, C = run.guarded(capture)
    run.check_form(C, A, B, run.result_shape(A, B))
    A.copy_(new[0]), B.copy_(new[1])
    run.guarded(graph.replay)
    require(run, C.clone(), *new, "replayed from a CUDA graph with new inputs")
    return f"{label(dims)}: captured once, replayed with new inputs"


def check_other_device(run):
    if not run.cuda or torch.cuda.device_count() < 2:
        return None
    (dims,) = run.small(257)
    A, B = run.inputs("normal", dims, "other device")
    other = next(d for d in range(torch.cuda.device_count()) if d != run.device.index)
    with torch.cuda.device(other):
        C = run.guarded(lambda: run.solution.model(A, B))
    run.check_form(C, A, B, run.result_shape(A, B))
    require(run, C, A, B, f"with cuda:{other} current")
    return f"inputs on {run.device} while cuda:{other} is current"


def check_memory(run):
    """Peak memory of a call beyond its inputs and its result, in matrices of the result's size."""
    if not run.cuda:
        return None
    A, B = run.inputs("uniform", run.dims, "memory")
    most = 0
    for _ in range(2):  # the first call may set up what later ones use
        torch.cuda.synchronize(run.device)
        torch.cuda.reset_peak_memory_stats(run.device)
        before = torch.cuda.memory_allocated(run.device)
        C = run.guarded(lambda: run.solution.model(A, B))
        run.check_form(C, A, B, run.result_shape(A, B))
        most = max(most, torch.cuda.max_memory_allocated(run.device) - before - C.untyped_storage().nbytes())
        del C
    matrices = most / max(1, math.prod(run.result_shape(A, B)) * A.element_size())
    run.report.facts["extra_memory_matrices"] = matrices
    if run.problem.triangular and run.size >= EXTRA_MEMORY_FROM and matrices > EXTRA_MEMORY:
        raise Wrong(
            f"{matrices:.3f} matrices of the result's size beyond inputs and result; at most {EXTRA_MEMORY} are allowed", contract=True
        )
    return f"{matrices:.3f} matrices of the result's size ({most / 1e6:.1f} MB) beyond inputs and result, at {label(run.dims)}"


# ---- Gradients -------------------------------------------------------------------------------------------------------


def compare_gradients(run, A, B, G, got):
    """dA and dB of the solution against float64, with the reference's for comparison, whose inputs are A = keep(P)."""
    P = leaves(A, B)
    R = run.refer(run.problem.keep(P[0]), run.problem.keep(P[1]), grad=True)
    wanted = torch.autograd.grad(R, P, G)
    found = []
    for name, d, r, (X, Y) in zip(("dA", "dB"), got, wanted, run.problem.gradient_factors(A, B, G), strict=True):
        if d is None or d.shape != r.shape or d.dtype != r.dtype:
            raise Wrong(f"{name} is {None if d is None else (tuple(d.shape), d.dtype)}, and should be {(tuple(r.shape), r.dtype)}")
        comparison = compare(d, r, Truth.of(X, Y, run.problem.keep), name)
        if comparison.fault:
            raise Wrong(f"{label(A.shape)}: {comparison.fault}")
        found.append(comparison)
    return found


def check_gradients(run):
    if not run.differentiable:
        raise Wrong("the result does not require a gradient when the inputs do", contract=True)
    found, leak = [], None
    for dims in run.small(1, 65, 257, *((1000,) if run.cuda else ())):
        for name in ("normal", "uniform"):
            A, B = run.inputs(name, dims, "gradients")
            if run.solution.promises_contract:
                A, B = run.fill_unread(A, 3.0), run.fill_unread(B, 3.0)
            G = Draw(run.seed, f"gradient {name} {label(dims)}", run.device).normal(*run.result_shape(A, B)).to(run.dtype)
            P = leaves(A, B)
            C = run.solve(*P, grad=True)
            with poisoned(run.device, A.nbytes, B.nbytes):
                got = run.guarded(lambda C=C, P=P, G=G: torch.autograd.grad(C, P, G), grad=True)
            found += compare_gradients(run, A, B, G, got)
            for which, d in zip(("dA", "dB"), got, strict=True):
                if bool((run.fill_unread(torch.zeros_like(d), d) != 0).any()):
                    leak = f"{label(dims)}: {which} is not zero in the triangle that is not read"
    if leak:
        raise Wrong(leak, contract=True)
    worst, reference = max(c.error for c in found), max(c.reference_error for c in found)
    return f"{len(found)} gradients against float64: worst error {worst:.1e}, the reference's {reference:.1e}"


# name, function, whether the check is about the contract of model_new.py alone
CONDUCT = (
    ("the reference's own inputs", check_own_inputs, False),
    ("bitwise the same on every run", check_repeats, False),
    ("results follow the inputs", check_follows, False),
    ("work on the current stream", check_side_stream, False),
    ("the other triangle is not read", check_unread, True),
    ("NaN and Inf stay in their sums", check_specials, True),
    ("any strides", check_strides, True),
    ("empty matrices", check_empty, True),
    ("CUDA graph capture", check_graph, True),
    ("another current GPU", check_other_device, True),
    ("extra memory", check_memory, False),
    ("gradients", check_gradients, False),
)


def run_check(run, function, contract=False):
    """The verdict of one check, and what it saw."""
    try:
        return "ok", function()
    except DeviceLost:
        raise
    except Wrong as wrong:
        excused = (contract or wrong.contract) and not run.solution.promises_contract
        return "note" if excused else "WRONG", str(wrong)


def list_of_conduct(run):
    run.report.stage("conduct")
    run.report.line()
    for name, function, contract in CONDUCT:
        run.report.progress(name)
        verdict, detail = run_check(run, lambda function=function: function(run), contract)
        if verdict != "ok" or detail is not None:
            run.report.check(name, verdict, detail)


# ======================================================================================================================
# 8. Timing
# ======================================================================================================================

# Measured on an H200 (design.md, section 2): bytes/s of a copy, FLOP/s that cuBLAS sustains in float16 and, from its 2261 us for a
# float64 product of 4096, in float64. The H100 SXM has the same chip and clocks; its memory is NVIDIA's figure, not measured.
MACHINES = {
    "NVIDIA H200": {"memory": 4.23e12, "float16": 776e12, "float64": 2 * 4096**3 / 2261e-6},
    "NVIDIA H100 80GB HBM3": {"memory": 3.35e12, "float16": 776e12, "float64": 2 * 4096**3 / 2261e-6},
}
# How many tensor-core products make one of the dtype: float32 as two halves of float16 each, three of the four products.
TENSOR_PRODUCTS = {
    torch.float32: ("float16", 3),
    torch.float16: ("float16", 1),
    torch.bfloat16: ("float16", 1),
    torch.float64: ("float64", 1),
}
WARM_UP = 3


def percentile(samples, q):
    ordered = sorted(samples)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def summary(samples):
    return {
        "median_us": statistics.median(samples) * 1e6,
        "best_us": min(samples) * 1e6,
        "p10_us": percentile(samples, 0.1) * 1e6,
        "p90_us": percentile(samples, 0.9) * 1e6,
        "samples_us": [s * 1e6 for s in samples],
    }


def take_turns(run, calls, A, trials, results):
    """Time calls {name: function} in turns; `results` are the bytes of each tensor that a call makes. Returns {name: seconds} and the
    last two outputs of each, with the sign that A had."""
    seconds, outputs = {name: [] for name in calls}, {name: deque(maxlen=2) for name in calls}
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=run.device) if run.cuda else None
    sign, begun = 1, time.perf_counter()
    for turn in range(WARM_UP + trials):
        if not run.cuda and turn >= WARM_UP + 3 and time.perf_counter() - begun > CPU_SECONDS * len(calls):
            break
        run.report.progress(f"turn {turn + 1}")
        A.data.neg_()  # a result that was kept from an earlier call has the wrong sign
        sign = -sign
        for name, call in calls.items():
            torch.set_float32_matmul_precision("highest")
            poison(run.device, *results, thorough=False)
            if run.cuda:
                flush.fill_(turn & 127)
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                out = call()
                end.record()
                torch.cuda.synchronize(run.device)
                took = start.elapsed_time(end) * 1e-3
            else:
                start = time.perf_counter()
                out = call()
                took = time.perf_counter() - start
            if turn >= WARM_UP:
                seconds[name].append(took)
            outputs[name].append((sign, out))
            del out
    return seconds, outputs


def check_timing(run, trials):
    A, B = run.inputs("uniform", run.dims, "timing")
    T = run.truth(A, B)
    R = run.refer(A, B)
    calls = {"reference": lambda: run.reference.model(A, B), "solution": lambda: run.solution.model(A, B)}
    with torch.no_grad():
        seconds, outputs = run.guarded(lambda: take_turns(run, calls, A, trials, [R.nbytes]))
    run.timings["forward"] = {name: summary(s) for name, s in seconds.items()}
    run.timings["forward"]["ratio"] = ratio_of(run.timings["forward"])
    for n, (sign, C) in enumerate(outputs["solution"]):
        run.check_form(C, A, B, R.shape)
        found = compare(sign * C, R, T)
        if found.fault:
            raise Wrong(
                f"the output of a timed call (the {('last but one', 'last')[n + 2 - len(outputs['solution'])]}) is wrong: {found.fault}"
            )
        check_zeros(run, C)
    return "the outputs of the last two timed calls are right in every element"


def check_timing_backward(run, trials):
    A, B = run.inputs("uniform", run.dims, "timing backward")
    G = Draw(run.seed, "timing backward", run.device).normal(*run.result_shape(A, B)).to(run.dtype)
    P = leaves(A, B)

    def both(model):
        return lambda: torch.autograd.grad(model(*P), P, G)

    calls = {"reference": both(run.reference.model), "solution": both(run.solution.model)}
    seconds, outputs = run.guarded(lambda: take_turns(run, calls, P[0], trials, [G.nbytes, A.nbytes, B.nbytes]), grad=True)
    run.timings["forward_backward"] = {name: summary(s) for name, s in seconds.items()}
    run.timings["forward_backward"]["ratio"] = ratio_of(run.timings["forward_backward"])
    sign, got = outputs["solution"][-1]
    compare_gradients(run, sign * A, B, G, got)
    return "the gradients of the last timed call are right in every element"


def ratio_of(timing):
    return timing["reference"]["median_us"] / timing["solution"]["median_us"]


def table_of_times(run, trials):
    report = run.report
    report.stage("timing")
    report.line()
    how = "CUDA events, cold L2" if run.cuda else "process clock"
    report.line(f"times at {label(run.dims)}, {how}: median [10th, 90th percentile], in microseconds")
    for name, key, check in (("forward", "forward", check_timing), ("forward + backward", "forward_backward", check_timing_backward)):
        if key == "forward_backward" and not run.differentiable:
            continue
        verdict, detail = run_check(run, lambda check=check: check(run, trials))
        if key in run.timings:
            t = run.timings[key]
            each = "   ".join(
                f"{n} {t[n]['median_us']:.1f} [{t[n]['p10_us']:.1f}, {t[n]['p90_us']:.1f}]" for n in ("reference", "solution")
            )
            work = run.problem.flops(run.dims) * (3 if key == "forward_backward" else 1)
            t["flops"] = work / (t["solution"]["median_us"] * 1e-6)
            report.line(f"  {name:<20}{each}   {t['ratio']:.2f}x   {t['flops'] / 1e12:.3g} TFLOP/s of useful work")
            if not run.cuda:
                report.line(f"  {'':<20}best: reference {t['reference']['best_us']:.1f}   solution {t['solution']['best_us']:.1f}")
        report.check(f"timed calls, {name}", verdict, detail)
    if "forward" in run.timings:
        show_limits(run)
        show_proof(run)


def show_limits(run):
    """The roofline: what the machine would need for the useful operations, and for the bytes that must move."""
    machine = MACHINES.get(torch.cuda.get_device_name(run.device)) if run.cuda else None
    if machine is None:
        run.report.line("  the limits of this machine are not known: no share is given")
        return
    unit, products = TENSOR_PRODUCTS[run.dtype]
    read, written = (n * torch.finfo(run.dtype).bits // 8 for n in run.problem.elements(run.dims))
    tensor_us = products * run.problem.flops(run.dims) / machine[unit] * 1e6
    memory_us = (read + written) / machine["memory"] * 1e6
    took = run.timings["forward"]["solution"]["median_us"]
    run.timings["limits"] = {"tensor_us": tensor_us, "memory_us": memory_us, "share": max(tensor_us, memory_us) / took}
    tensor = f"{tensor_us:.1f} us ({products} {unit} product{'s' * (products > 1)} at {machine[unit] / 1e12:.0f} TFLOP/s)"
    memory = f"{memory_us:.1f} us ({machine['memory'] / 1e12:.2f} TB/s)"
    share = f"{max(tensor_us, memory_us) / took:.0%} of the higher limit"
    run.report.line(f"  roofline: tensor cores {tensor}, memory {memory}; the solution's {took:.1f} us are {share}")
    # Even with every store absorbed by the L2, each input element has to come from memory; 15 % is between a copy and the datasheet.
    floor_us = read / (1.15 * machine["memory"]) * 1e6
    fine = took >= floor_us
    run.report.check(
        "not faster than memory",
        "ok" if fine else "WRONG",
        f"{took:.1f} us; reading the inputs once takes at least {floor_us:.1f} us" + ("" if fine else ": the work cannot have been done"),
    )


def show_proof(run):
    """KernelBench marks more than 10x as excessive; say what stands behind such a number, and only what was found to hold."""
    ratio = run.timings["forward"]["ratio"]
    if ratio <= 10:
        return
    run.report.line(f"  {ratio:.1f}x: KernelBench marks more than 10x as an excessive speedup. What this run found behind it:")
    held = {c["name"] for c in run.report.checks if c["verdict"] == "ok" and c["kind"] == "check"}
    rows = [c for c in run.report.checks if c["kind"] == "row"]
    if rows and all(c["verdict"] == "ok" for c in rows):
        run.report.line(
            f"    - every element of {len(rows)} fresh products within the bound of float64's, and the other triangle exactly zero"
        )
    for name, words in (
        ("timed calls, forward", "timed calls in poisoned memory with A negated before each, and their own outputs checked in full"),
        ("results follow the inputs", "results follow when the inputs change behind the same pointers; nothing is kept or shared"),
        ("work on the current stream", "the work is in the order of the current stream: events measure all of it"),
        ("not faster than memory", "the time is above what memory needs to deliver the inputs"),
    ):
        if name in held:
            run.report.line(f"    - {words}")
    share = run.timings.get("limits", {}).get("share", math.inf)
    if share <= 1:
        run.report.line(f"    - the machine's own limit is {1 / share:.2f} times faster still: nothing impossible is claimed")


# ======================================================================================================================
# 9. Report
# ======================================================================================================================


class Report:
    """Prints what is found as it is found, on stdout; what is being done, on stderr; and keeps everything for --json."""

    def __init__(self):
        self.checks, self.facts = [], {}
        self.live = sys.stderr.isatty()
        self.begun = time.perf_counter()
        self.current = ""

    def stage(self, name):
        self.current = name
        if not self.live:
            print(f"check.py: {name} ({time.perf_counter() - self.begun:.0f} s)", file=sys.stderr, flush=True)

    def progress(self, what):
        if self.live:
            print(f"\r\x1b[K{self.current}: {what} ({time.perf_counter() - self.begun:.0f} s)"[:150], end="", file=sys.stderr, flush=True)

    def line(self, text=""):
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        print(text, flush=True)

    def row(self, name, row, verdict, detail):
        self.checks.append({"kind": "row", "name": name, "verdict": verdict, "detail": detail, **row})
        numbers = "  ".join(f"{row[k]:9.1e}" if k in row else f"{'-':>9}" for k in ("reference_error", "error", "bound"))
        said = row.get("explained") or {}
        path = " ".join([str(said.get("path", "")), *(f"{k}={v}" for k, v in said.items() if k != "path")])
        if row.get("unjudged"):
            path += f" ({row['unjudged']} elements may overflow)"
        self.line(f"{name:<26} {row['size']:>14}  {numbers}  {verdict:<7}  {path}".rstrip())
        if detail:
            self.line(f"    {detail}")

    def check(self, name, verdict, detail):
        self.checks.append({"kind": "check", "name": name, "verdict": verdict, "detail": detail})
        self.line(f"{verdict:<6} {name}" + (f": {detail}" if detail else ""))

    def faults(self):
        return [c for c in self.checks if c["verdict"] == "WRONG"]


def plain(value):
    """For JSON, which has no NaN and no Inf."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def git_state():
    """The commit of check.py's folder and whether it has changes; nothing where there is no repository or no git."""
    state = {}
    for key, arguments in (("commit", ["rev-parse", "HEAD"]), ("dirty", ["status", "--porcelain"])):
        try:
            done = subprocess.run(["git", "-C", HERE, *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        if done.returncode:
            return {}
        state[key] = done.stdout.strip() if key == "commit" else bool(done.stdout.strip())
    return state


def machine_state(device):
    cuda = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if cuda else None
    return {
        "device": str(device),
        "device_name": properties.name if cuda else platform.processor() or platform.machine(),
        "capability": f"{properties.major}.{properties.minor}" if cuda else None,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def write_atomically(path, text):
    """Write beside the file and rename, so that nobody ever reads half a file."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=f".{os.path.basename(path)}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(temporary, 0o644)  # mkstemp makes files that nobody else may read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def check_writable(path, option):
    """Found out before the long work."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise CannotRun(f"{option} {path}: there is no folder {folder}; a file in an existing folder is accepted")
    if os.path.isdir(path):
        raise CannotRun(f"{option} {path}: is a folder; the name of a file is accepted")
    try:
        handle, temporary = tempfile.mkstemp(dir=folder)
    except OSError as error:
        raise CannotRun(f"{option} {path}: the folder {folder} is not writable ({error})") from None
    os.close(handle)
    os.unlink(temporary)


# ======================================================================================================================
# 10. Command line
# ======================================================================================================================


def whole_number(least, most):
    def parse(text):
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is given; a whole number from {least} to {most} is accepted")
        return value

    return parse


def device_of(text):
    """A torch.device that exists, with its index."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text!r} is given; cpu, cuda or cuda:1 (any index) is accepted")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise argparse.ArgumentTypeError(f"{text!r} is given, but torch {torch.__version__} sees no CUDA GPU; cpu is accepted")
        device = torch.device("cuda", device.index if device.index is not None else torch.cuda.current_device())
        if device.index >= torch.cuda.device_count():
            raise argparse.ArgumentTypeError(f"{text!r} is given, but there are {torch.cuda.device_count()} GPUs, counted from cuda:0")
    return device


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="check.py",
        description="Judge a solution against a reference: right, honest, and how fast. The manual is check.py's docstring.",
    )
    add = parser.add_argument
    add("--problem", choices=list(PROBLEMS), default="lower", help="which product (default: lower)")
    add("--solution", metavar="FILE", default=os.path.join(HERE, "model_new.py"), help="the file to judge (default: model_new.py)")
    add("--reference", metavar="FILE", default=os.path.join(HERE, "reference_model.py"), help="default: reference_model.py")
    add("--size", metavar="N", type=whole_number(1, 1 << 20), help="size of the headline; larger tests are left out. transposed_a: K")
    add("--dtype", choices=list(DTYPES), default="float32", help="default: float32")
    add(
        "--device",
        type=device_of,
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu, cuda or cuda:1 (default: a GPU if any)",
    )
    add("--seed", metavar="S", type=whole_number(0, 2**63 - 1), help="repeat a run's random inputs (default: a new seed each run)")
    add("--trials", metavar="T", type=whole_number(1, 100_000), default=30, help="timed calls (default: 30)")
    add("--no-timing", action="store_true", help="only check")
    add("--json", metavar="FILE", help="record everything there")
    add("--export", metavar="FILE", help="write the solution as a KernelBench file of --problem, and do nothing else")
    options = parser.parse_args(argv)
    if options.size is None:
        narrow = options.dtype in ("float16", "bfloat16")
        # A CPU takes seconds for a dense 16-bit product of 1024.
        options.size = (8192 if options.problem == "transposed_a" else 4096) if options.device.type == "cuda" else 512 if narrow else 2048
    return options


def export(path, solution_path, problem):
    """The solution's own text, and the names that KernelBench looks for."""
    text = read_text(solution_path, "--solution")
    check_writable(path, "--export")
    if os.path.exists(path):
        raise CannotRun(f"--export {path}: exists already, and is not overwritten; a new name is accepted")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise CannotRun(f"--solution {solution_path}: is not Python ({error})") from None
    defined = {n.name for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    defined |= {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    needed = (f"{problem.prefix}ModelNew", f"get_inputs{problem.suffix}", "get_init_inputs")
    missing = [name for name in needed if name not in defined]
    if missing:
        raise CannotRun(f"--solution {solution_path}: defines no {', '.join(missing)}, which problem {problem.name} needs")
    if problem.prefix:
        text = text.rstrip("\n") + (
            f"\n\n\n# ---- KernelBench level 1, problem {problem.number}: the names that it looks for. ----\n"
            f"ModelNew = {needed[0]}  # noqa: F811\nget_inputs = {needed[1]}  # noqa: F811\n"
        )
    write_atomically(path, text)
    print(f"wrote {path}: {os.path.basename(solution_path)} as KernelBench level 1, problem {problem.number} ({problem.formula})")
    return 0


def referee(options):
    device, problem, dtype = options.device, PROBLEMS[options.problem], DTYPES[options.dtype]
    if options.json:
        check_writable(options.json, "--json")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(6), "little")
    report = Report()
    state = machine_state(device)
    found_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    solution_text = read_text(options.solution, "--solution")  # a missing file is found before the reference is run
    torch.manual_seed(seed)

    report.line(
        f"{problem.formula} (KernelBench level 1, problem {problem.number}), {label(problem.headline(options.size))}, {options.dtype}"
    )
    on = f"{device} ({state['device_name']}" + (
        f", compute capability {state['capability']}, CUDA {state['cuda']})" if state["capability"] else ")"
    )
    report.line(f"on {on}, torch {state['torch']}, Python {state['python']}, {state['threads']} threads")
    report.line(f"seed {seed} (--seed {seed} repeats these inputs)")
    report.line(f"float32 matmul precision was {found_precision!r}; this run sets 'highest', so that the reference uses no TF32")
    reference, arguments = load_reference(options.reference, problem, device)
    report.line(f"reference {reference.path}: {reference.class_name}")

    record = {
        "problem": problem.name,
        "dims": problem.headline(options.size),
        "seed": seed,
        "options": {k: str(v) if isinstance(v, torch.device) else v for k, v in vars(options).items()},
        "machine": state,
        "git": git_state(),
        "precision_found": found_precision,
        "reference": {"path": reference.path, "class": reference.class_name, "sha256": reference.sha256},
        "solution": {"path": options.solution, "sha256": hashlib.sha256(solution_text.encode()).hexdigest()},
    }
    timings = {}
    try:
        report.stage("loading the solution")
        solution = load_solution(options.solution, solution_text, problem, arguments, device)
        record["solution"]["class"] = solution.class_name
        record["solution"]["promises_contract"] = solution.promises_contract
        promise = "promises the contract" if solution.promises_contract else "has no tril_matmul, so what only the contract asks is a note"
        report.line(f"solution  {solution.path}: {solution.class_name}; it {promise}")
        if torch.get_float32_matmul_precision() != "highest":
            report.check("precision", "note", f"the solution sets the float32 matmul precision to {torch.get_float32_matmul_precision()!r}")
        run = Run(problem, options.size, dtype, device, seed, reference, solution, report, timings)
        table_of_inputs(run)
        list_of_conduct(run)
        if not options.no_timing:
            table_of_times(run, options.trials)
    except Wrong as wrong:  # outside a check: while loading, or the GPU is lost
        lost = isinstance(wrong, DeviceLost)
        report.check(
            "running" if lost else "loading",
            "WRONG",
            f"{wrong}" + ("; the GPU does not recover, and nothing more is checked" if lost else ""),
        )

    faults = report.faults()
    seconds = time.perf_counter() - report.begun
    report.line()
    report.line(
        f"{len(report.checks)} checks, {sum(c['verdict'] == 'note' for c in report.checks)} notes, {len(faults)} wrong, {seconds:.0f} s: "
        + ("all holds" if not faults else "WRONG: " + "; ".join(dict.fromkeys(c["name"] for c in faults)))
    )
    if options.json:
        paths = sorted({str((c.get("explained") or {}).get("path")) for c in report.checks if c.get("explained")})
        record |= {
            "verdict": "wrong" if faults else "ok",
            "checks": report.checks,
            "facts": report.facts,
            "timings": timings,
            "ratio": timings.get("forward", {}).get("ratio"),
            "paths": paths,
            "seconds": seconds,
        }
        write_atomically(options.json, json.dumps(plain(record), indent=1, allow_nan=False) + "\n")
        report.line(f"wrote {options.json}")
    return 1 if faults else 0


def main(argv=None):
    """Returns the exit status. `argv` is sys.argv[1:] where it is not given."""
    try:
        options = parse(argv)
    except SystemExit as stop:  # argparse has said what is wrong
        return stop.code or 0
    precision, current = torch.get_float32_matmul_precision(), torch.cuda.current_device() if torch.cuda.is_available() else None
    try:
        if options.export:
            return export(options.export, options.solution, PROBLEMS[options.problem])
        return referee(options)
    except CannotRun as reason:
        print(f"check.py: {reason}", file=sys.stderr)
        return 2
    except torch.cuda.OutOfMemoryError as error:
        print(
            f"check.py: not enough memory on {options.device} for --size {options.size} ({error}); a smaller size may fit", file=sys.stderr
        )
        return 2
    finally:
        torch.set_float32_matmul_precision(precision)
        if current is not None:
            torch.cuda.set_device(current)


if __name__ == "__main__":
    sys.exit(main())
