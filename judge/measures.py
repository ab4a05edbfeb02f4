"""What a product is measured by: problems, sizes, inputs, exact results and bounds, spreads of times. Tests and benchmarks use it, too."""

import math
import statistics
import time
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random

import torch

# ==== 1. The problems ====


@dataclass(frozen=True)
class Problem:
    formula: str
    prefix: str  # of the class names
    names: str  # of the inputs
    keeps: tuple  # the part of each input, and of C, that exists; the rest is not read, or zero in a result; as_tensor: all
    factors: tuple  # of the inputs and G = dC: X and Y of C, then of the inputs' gradients, each of which is keep(X @ Y)
    number: int | None = None  # in KernelBench's level 1, where zeros stand beside what exists; elsewhere NaN or 1, but for the reference
    size: int = 4096  # that is timed on a GPU
    roundings: float = 0.0  # of 16-bit gradients, beside the last: half units in the last place, of the magnitude
    keep = property(lambda self: self.keeps[-1])
    square = property(lambda self: self.number != 16)
    inverse = property(lambda self: self.prefix == "Inverse")  # whose X and Y are L and G, see inverse_of
    results = property(lambda self: ("C", *("d" + name for name in self.names)))
    measure = property(lambda self: "magnitude" if self.inverse else "(|A||B|)")  # by which errors are divided

    def headline(self, size):
        """The dimensions that --size stands for: (N,), or (K, M, N) in the proportions of KernelBench's problem 16."""
        return (size,) if self.square else (size, max(1, size // 4), max(1, size // 2))

    def shapes(self, dims):
        """Of the inputs and C. One number more than the headline has stands first, and is that of the products in a batch."""
        *batch, K, M, N = (*dims, dims[-1], dims[-1]) if self.square else dims
        return *((*batch, K, M), (*batch, K, N))[: len(self.names)], (*batch, M, N)

    def given(self, made, dtype, rest):
        """The inputs, of what a distribution makes. `rest` stands where nothing is read."""
        rest, made = 0.0 if self.number else rest, [dominant(X, dtype) for X in made] if self.inverse else made
        return [X.where(keep(torch.ones_like(X, dtype=torch.bool)), rest) for X, keep in zip(made, self.keeps, strict=False)]

    def read(self, inputs):
        """The inputs with zeros where nothing is to be read, and all of G: what a mask covers of it meets those zeros."""
        return [keep(X) for X, keep in zip(inputs, (*self.keeps[:-1], torch.as_tensor), strict=False)]

    def truths(self, inputs, exact=False, tf32=False, one_tensor=False):
        """The name and the Truth of each result: of C alone, unless G is given. `one_tensor`: A is B, whose gradient is the sum of both."""
        if one_tensor and len(inputs) > len(self.names):
            C, (name, gradient), (_, other) = self.truths(inputs, exact, tf32)
            yield C
            yield name, gradient.plus(other)
            return
        read, results = self.read(inputs), self.results if len(inputs) > len(self.names) else ["C"]
        for name, keep, factors_of in zip(results, (self.keep, *self.keeps), self.factors, strict=False):
            yield name, Truth(*factors_of(*read), keep, exact, tf32, self.inverse, None if name == "C" else self.roundings)


_PRODUCT = (lambda A, B, *_: (A, B), lambda A, B, G: (G, B.mT), lambda A, B, G: (A.mT, G))
_TRANSPOSED = (lambda A, B, *_: (A.mT, B), lambda A, B, G: (B, G.mT), lambda A, B, G: (A, G))
_GRAM = (lambda X, *_: (X, X.mT), lambda X, G: (torch.cat([G, G.mT], -1), torch.cat([X, X], -2)))  # dX = G X + G^T X
_INVERSE = (lambda L, *_: (L, None), lambda L, G: (L, G))

PROBLEMS = {
    "lower": Problem("C = tril(A) tril(B)", "", "AB", (torch.tril,) * 3, _PRODUCT, 15),
    "upper": Problem("C = triu(A) triu(B)", "Upper", "AB", (torch.triu,) * 3, _PRODUCT, 14),
    "transposed_a": Problem("C = A.T B", "TransposedA", "AB", (torch.as_tensor,) * 3, _TRANSPOSED, 16, 8192),
    "triangular": Problem("C = tril(A) X", "Triangular", "AX", (torch.tril, torch.as_tensor, torch.as_tensor), _PRODUCT),
    "gram": Problem("C = X X.T", "Gram", "X", (torch.as_tensor,) * 2, _GRAM, roundings=2.0),  # G + G^T, or G X and G^T X
    "inverse": Problem("C = tril(L)^-1", "Inverse", "L", (torch.tril,) * 2, _INVERSE, size=128, roundings=1.5),  # C twice, and C^T G
}

# ==== 2. Sizes ====


def label(dims):
    return "x".join(map(str, dims))


def some_sizes(random, most):
    """Two an octave, half of them at or beside a multiple of a power of two; the rest fits no tile."""
    for half in range(int(2 * math.log2(most)) + 1):
        size, step = int(2 ** ((half + random.random()) / 2)), 1 << random.randint(0, max(0, half // 2 - 1))
        size = random.choice((size, size // step * step + random.choice((-1, 0, 1))))
        yield min(max(1, size), most)


def sizes_about_multiples(random, most):
    """For each power of two from 8 on an odd multiple of it, or one more."""
    for power in (1 << p for p in range(3, most.bit_length())):
        multiples = most // power
        yield (2 * random.randint(multiples // 8, (multiples - 1) // 2) + 1) * power + random.choice((0, 1))


def dims_of(sizes, random, problem, most):
    """Of as many products, with sizes drawn by one of the functions above."""
    first, *others = (list(sizes(random, most)) for _ in problem.headline(1))  # N; or K, M and N, each in an order of its own
    return list(zip(first, *(random.sample(column, len(column)) for column in others), strict=True))


def some_batches(number, random, problem, most):
    """Dimensions of batches of up to a thousand products, which have as many elements as one of the largest; sides are odd, or even."""
    for n in range(number):
        sides, step = (int(most / 2 ** random.uniform(1, 7)) for _ in problem.headline(1)), 1 << random.randint(1, 4)
        dims = [side // step * step or 2 if n % 2 else side | 1 for side in sides]
        yield (random.randint(2, max(2, min(1000, (most // max(dims)) ** 2))) if n else 1, *dims)


# ==== 3. Inputs ====


class Draw:
    """Random float64 matrices on a device, from a stream of their own: a seed repeats them whatever else is drawn."""

    def __init__(self, seed, name, device, tf32=False):
        self.device, self.tf32 = device, tf32
        stream = torch.Generator(device).manual_seed(Random(f"{seed} {name}").getrandbits(63))
        self.odd = name % 2 if isinstance(name, int) else 0
        self.uniform, self.normal = (partial(f, dtype=torch.float64, device=device, generator=stream) for f in (torch.rand, torch.randn))

    def decades(self, span, *shape):
        return 10.0 ** (span * (2 * self.uniform(*shape) - 1))

    # Distributions: each makes A, or B where `second` is 1, before what is not read is masked away. Results are sums of shape[0] terms.

    def identity(self, shape, *_):
        return torch.eye(*shape, dtype=torch.float64, device=self.device)

    def integers(self, shape, second, dtype):
        # Terms up to limit^2, so that a sum of them needs no bit that the accumulator lacks. 4 keeps float16 from overflowing.
        limit = 4 if dtype.itemsize == 2 else max(1, math.isqrt(2 ** (53 if dtype == torch.float64 else 24) // shape[0]))
        limit = min(limit, 1024) if self.tf32 else limit  # which holds 11 bits
        return torch.floor((2 * limit + 1) * self.uniform(*shape)) - limit

    def elimination(self, shape, second, dtype):
        """Products of these are what LU without pivoting multiplies: ones on the diagonal, one column (and row) of wild multipliers."""
        X, at, span = self.identity(shape), int(self.uniform(1) * min(shape)), 2 if dtype == torch.float16 else 8
        for line in (X[at:, at], X[at, at:]):
            line.copy_(self.normal(*line.shape) * self.decades(span, *line.shape))
        X[at, at] = 1
        return X

    def cholesky(self, shape, *_):
        """The factor of a Gram matrix whose pivots fall to the 1e-8 that keeps it positive definite. No exp: a CPU's is off by 3e-9."""
        x = self.uniform(max(shape)).cpu().sort().values
        gram = 1 / (1 + ((x[:, None] - x) / 0.1) ** 2)
        L = torch.linalg.cholesky(gram.fill_diagonal_(1 + 1e-8))
        # Its transpose stands above the diagonal, so that an upper triangular problem finds a factor too.
        return (L + L.tril(-1).mT)[: shape[0], : shape[1]].to(self.device)

    def scaled(self, shape, second, dtype, of, along, span=8):
        """A or B (`of`), its rows (along = 0) or columns over some decades."""
        lines = (1, shape[1]) if along else (shape[0], 1)
        return self.normal(*shape) * self.decades(span * ("AB"[second] == of), *lines)

    def graded(self, shape, second, dtype):
        """The index that is summed over graded from 1e-15 to 1e15 in A, and inversely in B: every term is of ordinary size."""
        X = self.normal(*shape)
        grade = 10.0 ** torch.linspace(-15, 15, shape[0], dtype=X.dtype, device=X.device)
        return X / grade[:, None] if second else X * (grade if shape[0] == shape[1] else grade[:, None])

    def about(self, shape, second, dtype, scales):
        return scales[second] * (0.5 + self.uniform(*shape)) * self.normal(*shape).sign()

    def apart(self, shape, second, dtype):
        """Uniform, but for one small row or column."""
        X, (which, at) = self.uniform(*shape), self.uniform(2).tolist()
        lines = X if which < 0.5 else X.T
        lines[int(at * len(lines))] *= 1e-3 if dtype == torch.float16 else 1e-9
        return X

    def single(self, shape, second, dtype, value):
        X, (rows, cols), (p, q) = self.normal(*shape), shape, self.uniform(2).tolist()
        value = 1e4 if dtype == torch.float16 else value
        X[int(p * rows), int(q * cols)] = X[int(q * rows), int(p * cols)] = value  # one of them lies in the triangle, whichever it is
        return X


def dominant(X, dtype):
    """L whose inverse is of ordinary size: rows of X over their number, or elements over squared distances; on the diagonal their sum."""
    at, own = torch.arange(X.shape[-1], device=X.device)[:, None], X.diagonal(dim1=-2, dim2=-1)
    L = X.tril(-1) / torch.where(own[..., :1, None] < 0, (at - at.mT).clamp_min(1) ** 2, at + 1)
    before = L.abs().sum(-1)
    before = torch.where(before > 2.0 ** (-4 if dtype.itemsize == 2 else -40), before, 1 + own.abs())
    return L + torch.diag_embed(before.copysign(own))


ORDINARY = {
    "uniform": lambda draw, shape, *_: draw.uniform(*shape),  # as KernelBench draws
    "normal": lambda draw, shape, *_: draw.normal(*shape),
    # Of one sign, and of two: A and B take turns
    "mixed": lambda draw, shape, second, _: 2 * draw.uniform(*shape) - 1 if second == draw.odd else draw.uniform(*shape),
}
WIDE = {  # these need the exponent range of float32, which bfloat16 has: not for float16
    "lognormal, sigma 3": lambda draw, shape, *_: torch.exp(3 * draw.normal(*shape)),
    "rows of A over 16 decades": partial(Draw.scaled, of="A", along=0),
    "columns of A over 16": partial(Draw.scaled, of="A", along=1),
    "rows of B over 16": partial(Draw.scaled, of="B", along=0),
    "columns of B over 16": partial(Draw.scaled, of="B", along=1),
    "graded inversely 1e+-15": Draw.graded,
    "one tiny entry": partial(Draw.single, value=1e-30),
}
EXTREME = {  # about the ends of float32's range: for no other type
    "near overflow": lambda draw, shape, *_: math.sqrt(2.0**124 / shape[0]) * draw.normal(*shape),  # |A||B| stays below the largest number
    "about 1e18 and 1e-20": partial(Draw.about, scales=(1e18, 1e-20)),
    "about 1e-20": partial(Draw.about, scales=(1e-20, 1e-20)),
    "denormals and 1e10": partial(Draw.about, scales=(1e-39, 1e10)),
}
SEEMINGLY_UNIFORM = {  # to whoever samples: a few entries of either sign, or a line, are not
    "uniform, large entries": lambda draw, n, *_: draw.uniform(*n).where(draw.uniform(*n) * math.prod(n) > 16, 128 * draw.uniform(*n) - 64),
    "uniform, one small line": Draw.apart,
}
HARD = {
    "integers": Draw.integers,
    "sparse": lambda draw, shape, *_: draw.normal(*shape) * (draw.uniform(*shape) < 0.02),
    "zero": lambda draw, shape, second, _: draw.normal(*shape) * (second != draw.odd),  # one of them, of zeros of either sign
    "identity": lambda draw, shape, second, dtype: 1e-3 * draw.normal(*shape) if second == draw.odd else draw.identity(shape),
    "elimination": Draw.elimination,
    "unit diagonal": lambda draw, shape, *_: (2 * draw.uniform(*shape) - 1).fill_diagonal_(1),  # as LU with pivoting
    "Cholesky, near singular": Draw.cholesky,
    **SEEMINGLY_UNIFORM,
    "rows of A over 2 decades": partial(Draw.scaled, of="A", along=0, span=1),
    "one huge entry": partial(Draw.single, value=1e30),
    **WIDE,
    **EXTREME,
}
DISTRIBUTIONS = ORDINARY | HARD


def gradient_of(kind, way, draw, dtype, shape, keep):
    """dC, of a kind: 0 as ever; 1 some rows of many scales; 2 of ones; 3 of one value, often small; 4 of one a row, or a column; 5 zero
    where C is, and in places, whole rows too; 6 of one sign; 7 columns of many scales; 8 the same in all of a batch, as others may be
    where `way` is not 0."""
    sign, span = 1 - 2 * draw.odd, 0.5 if dtype == torch.float16 else 8  # small for float16: no sum of a large product may overflow
    scales = sign * draw.decades(span, *((*shape[:-2], 1, shape[-1]) if kind == 7 or kind == 4 and way > 1 else (*shape[:-1], 1)))
    if kind in (2, 3, 4):  # expanded
        one = torch.full_like(scales[..., :1, :1], sign)
        if kind == 3:
            one *= 10**-span if draw.uniform(1) < 0.75 else draw.decades(span, 1)
        return (scales if kind == 4 else one).to(dtype).expand(shape)
    apart = draw.uniform(*scales.shape) < draw.uniform(1) ** 3  # none to all of them
    G = (draw.uniform if kind == 6 else draw.normal)(*shape) * scales.where(apart & (kind == 1) | (kind == 7), sign)
    G = (keep(G) * (draw.uniform(*shape) < draw.uniform(1) ** 3) if kind == 5 else G).to(dtype)
    return G[:1].expand(shape) if kind == 8 or kind and way and len(shape) > 2 and draw.uniform(1) < 0.75 else G


# The kind, and the way: odd asks for each gradient by itself; 2 is for a dC column by column, 4 of padded rows, 6 of every second element.
GRADIENTS = [(kind, way) for kind in range(8) for way in range(4 if kind in (2, 3, 4) else 8)]


def inputs_of(name, draw, dtype, *shapes):
    """A and, for two shapes, B. Hard matrices are the same in all of a batch, but for signs."""
    made = []
    for second, shape in enumerate(shapes):
        X = DISTRIBUTIONS[name](draw, shape[-2:] if name in HARD else shape, second, dtype).expand(shape)
        made.append(X if name in ORDINARY | SEEMINGLY_UNIFORM else X * draw.normal(*shape[:-2], 1, 1).sign())
    return made


# ==== 4. Truth and errors ====


def slices(X, along, bits):
    """X (float64) as a sum of parts with at most `bits` bits below the leading one of the largest element `along` a dimension."""
    rest = X.clone()
    while bool(rest.any()):
        largest = rest.abs().amax(along, keepdim=True)
        unit = (largest / torch.frexp(largest)[0]).nan_to_num_(1.0) * 2.0**-bits  # a power of two, exactly
        unit.clamp_min_(5e-324)  # the smallest number there is: nothing lies below it
        yield (part := torch.round(rest / unit) * unit)
        rest -= part


def exact_product(X, Y):
    """X @ Y as a pair of float64 (high, low), and |X||Y|; low is zero where float64 products of narrower ones are exact enough."""
    x, y = X.double(), Y.double()
    high, low = x.new_zeros(*X.shape[:-1], Y.shape[-1]) if X.dtype == torch.float64 else x @ y, x.new_zeros(1, 1)
    # n products of two b-bit numbers add up exactly in float64 while 2 b + log2 n <= 53 (Ozaki et al., Numer. Algorithms 59, 2012).
    bits = (53 - max(1, X.shape[-1]).bit_length()) // 2
    for a, b in product(slices(x, -1, bits), slices(y, -2, bits)) if X.dtype == torch.float64 else ():
        part = a @ b
        total = high + part  # Knuth's two-sum: the rounding error of high + part is kept in low
        back = total - high
        low = low + ((high - (total - back)) + (part - back))
        high = total
    one_sign = all(bool((Z >= 0).all()) or bool((Z <= 0).all()) for Z in (X, Y))
    return high, low, high.abs() if one_sign else x.abs() @ y.abs()


def inverse_of(L, G):
    """C = L^-1 as exact_product has it, and |C||L||C|, by which substitution is off; where G is given, of dL = -C^T G C^T in float64."""
    wide, one = L.double(), torch.eye(L.shape[-1], dtype=torch.float64, device=L.device)
    C = torch.linalg.solve_triangular(wide, one, upper=False)
    off, low = C.abs() @ (wide.abs() @ C.abs()), C.new_zeros(1, 1)
    if G is not None:
        G, T = G.double(), C.mT
        return -(T @ (G @ T)), low, off.mT @ (G.abs() @ T.abs()) + T.abs() @ (G.abs() @ off.mT)
    if L.dtype == torch.float64:  # what C is off by itself: a step of Newton's method
        high, rest, _ = exact_product(wide, C)
        low = C @ (one - high - rest)
    return C, low, off


def may_underflow(X, Y):
    """Where X @ Y has a product under float32's smallest normal number, within a factor of 4: 1.0 (float64), else 0.0."""
    # |x| < 2^e_x and |x| >= 2^(e_x - 1), so a product is at least 2^(e_x + e_y - 2); the smallest normal number is 2^-126.
    x, y = (torch.where(Z != 0, torch.frexp(Z)[1], 1 << 20) for Z in (X, Y))  # the exponents; a zero's is beyond all
    hits = torch.zeros(*X.shape[:-1], Y.shape[-1], dtype=torch.float64, device=X.device)
    for e in torch.unique(x[x < -124 - y.min()]).tolist():
        hits[(x == e).float() @ (y < -124 - e).float() > 0.5] = 1.0
    return hits


def allowed(dtype, terms, tf32=False, inverse=False):
    """The componentwise errors that a solution may have in any case, and that no reference can excuse, as docs/judge.md derives them."""
    root, u = math.sqrt(max(1, terms)), torch.finfo(dtype).eps / 2
    if tf32:
        return 2.0**-10 + 2.0**-22 + root * 2.0**-23, 2.0**-8
    if dtype.itemsize == 2:
        return max(root, terms / 16) * 2.0**-23, 4 * u
    if dtype == torch.float64:
        return max(1e-6 * 2.0**-29, 2 * root * u * (not inverse)), 16 * root * u
    return 1e-6 if inverse else 1.5e-6, 16 * root * u


def elementwise_bound(dtype, terms, exact, magnitude, tf32=False, inverse=False):
    """The error that each element of a result may have beside `exact`, which is float64: what `allowed` names first, times |X||Y|, and one
    rounding of a 16-bit result. A product in float64 may differ by what two such sums, in any order, may lose."""
    info = torch.finfo(dtype)
    if dtype == torch.float64 and not inverse:
        return (terms + 1) * info.eps * magnitude
    bound = allowed(dtype, terms, tf32, inverse)[0] * magnitude
    return bound + (exact.abs() + info.smallest_normal * (magnitude > 0)) * (info.eps / 2) if dtype.itemsize == 2 else bound


class Truth:
    """What a result should be, and by what an element may be off. All float64 (m, n). `exact`: every term and sum is representable.
    `inverse`: of keep(X^-1), or where Y = G is given, of the gradient. `roundings`, see Problem, are given of gradients."""

    def __init__(self, X, Y, keep, exact=False, tf32=False, inverse=False, roundings=None):
        terms, info = X.shape[-1], torch.finfo(X.dtype)
        self.unit = info.eps / 2
        half_a_unit = info.eps / 2 * (X.dtype.itemsize == 2)  # in the last place of 16-bit numbers
        self.least, self.most = (0.0, 0.0) if exact else allowed(X.dtype, terms, tf32, inverse)
        self.least += (roundings or 0.0) * half_a_unit
        self.high, self.low, self.magnitude = inverse_of(X, Y) if inverse else exact_product(X, Y)
        # Absolute: what underflow may take, and the rounding of 16-bit results, which is half the spacing of denormal numbers at least.
        forgiven = (self.high.abs() * half_a_unit).clamp_min_(info.smallest_normal * half_a_unit)
        if exact:  # what is left is one rounding to the result's dtype
            self.high, forgiven = self.high.to(X.dtype).double(), 0.0
        elif X.dtype == torch.float32:
            tiny = (self.high != 0) & (self.high.abs() < info.smallest_normal)
            forgiven = ((0.0 if inverse else may_underflow(X, Y) * terms) + tiny) * info.smallest_normal
        # Where keep() leaves out, nobody needs a gradient: there it may be what no part of its sum exceeds.
        masked, most = keep(torch.ones_like(self.high)) == 0, 0.0
        if roundings is not None:
            most = info.max if inverse else terms * float(X.abs().max()) * float(Y.abs().max())
        self.high, self.low = keep(self.high), keep(self.low)
        self.forgiven, self.magnitude = (torch.where(masked, most, Z) for Z in (forgiven, self.magnitude))
        self.magnitude[~(self.magnitude <= info.max)] = math.inf  # a partial sum may overflow: the element is not judged

    def plus(self, other):
        """The truth of a sum of two results, each of which was rounded; the sum is rounded once more."""
        self.high, self.low = self.high + other.high, self.low + other.low
        self.magnitude = self.magnitude + other.magnitude
        self.forgiven = self.forgiven + other.forgiven + self.high.abs() * self.unit
        self.least, self.most = max(self.least, other.least), max(self.most, other.most)
        return self

    def errors(self, C):
        """The componentwise error of each element of C; Inf where an element is NaN or Inf and should not be."""
        off = C.detach().double() - self.high - self.low
        off = off.abs_().sub_(self.forgiven).clamp_min_(0).nan_to_num_(nan=math.inf, posinf=math.inf)
        return off.div_(self.magnitude).nan_to_num_(nan=0.0, posinf=math.inf)  # 0 / 0 is right, and so is all that is not judged

    def worst(self, C):
        """The largest error, and the element that has it."""
        return worst_of(self.errors(C))

    @property
    def unjudged(self):
        return int(self.magnitude.isinf().sum())

    def bound(self, reference_worst):
        return max(self.least, min(2 * reference_worst, self.most))


def worst_of(errors):
    first = int(errors.argmax())  # torch.unravel_index would import sympy, half a second, and nonzero() take 16 bytes an element
    at = tuple(first // math.prod(errors.shape[n + 1 :]) % size for n, size in enumerate(errors.shape))
    return float(errors[at]), at


def located(X, at):
    return f"[{', '.join(map(str, at))}] = {float(X[at]):.9g}"


def first_difference(X, Y):
    """The first element that is not the same bit for bit, NaN included; nothing if there is none."""
    x, y = (Z.detach().view(getattr(torch, f"int{8 * Z.element_size()}")) for Z in (X, Y))
    if not torch.equal(x, y):
        at = worst_of((x != y).byte())[1]
        return f"{located(X, at)} and {float(Y[at]):.9g}"


# ==== 5. Times ====


def spread(samples):
    """Median, 10th and 90th percentile of a list of microseconds, and the least."""
    tenths = statistics.quantiles([*samples, *samples[: len(samples) == 1]], n=10, method="inclusive")
    return {"median_us": tenths[4], "p10_us": tenths[0], "p90_us": tenths[8], "best_us": min(samples)}


def undisturbed(times):
    """What calls take that others leave alone: the median, unless the calls' times lie far apart."""
    far = [times[name] for name, factor in (("p10_us", 1.25), ("best_us", 8)) if times["median_us"] > factor * times[name]]
    return min(far, default=times["median_us"])


def duration(us):
    return f"{us:.1f} us" if us < 100 else f"{us:.0f} us" if us < 1000 else f"{us / 1e3:.2f} ms" if us < 1e5 else f"{us / 1e6:.2f} s"


class Moment:
    """On a CPU, what torch.cuda.Event is on a GPU."""

    def record(self):
        self.time = time.perf_counter()

    def elapsed_time(self, end):
        return (end.time - self.time) * 1e3
