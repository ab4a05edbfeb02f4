"""Defines what the judge needs for the six products: problems, sizes, inputs, exact results and bounds.

It also summarizes times, for all problems. Tests and benchmarks use this file, too.
"""

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
class Product:
    formula: str
    prefix: str  # the prefix of the class names
    names: str  # the names of the inputs, one letter each
    # `keeps` has one function for each input and one for C. A function such as torch.tril keeps a part of its matrix,
    # and torch.as_tensor keeps all of it. The rest of an input is not read, and the rest of C is zero.
    keeps: tuple
    # `factors` has one function for C and one for the gradient of each input. A function takes the inputs and G = dC,
    # and returns X and Y. The result is keep(X @ Y), where `keep` is the function in `keeps` for C or for that input.
    factors: tuple
    # `number` is the problem's number in KernelBench's level 1, or None. If there is a number, inputs have zeros where
    # they are not read, as in KernelBench. If there is none, the solution's inputs have NaN or 1 there, and the
    # reference's have zeros.
    number: int | None = None
    size: int = 4096  # the default of --size on a GPU; a CPU has at most 1024, or 512 if the dtype is not float32
    # Intermediate results of a 16-bit gradient may be rounded. `roundings` bounds the error of these roundings, as a
    # multiple of u |X||Y|, where u = eps / 2 is the unit roundoff.
    roundings: float = 0.0
    keep = property(lambda self: self.keeps[-1])
    square = property(lambda self: self.number != 16)
    # For the inverse, the functions in `factors` return the arguments of inverse_of(): L, and G or None.
    inverse = property(lambda self: self.prefix == "Inverse")
    results = property(lambda self: ("C", *("d" + name for name in self.names)))
    # `measure` names in messages what errors are divided by.
    measure = property(lambda self: "magnitude" if self.inverse else "(|A||B|)")

    def headline(self, size):
        """Returns the dimensions that --size stands for.

        They are (N,), or (K, M, N) in the proportions of KernelBench's problem 16.
        """
        return (size,) if self.square else (size, max(1, size // 4), max(1, size // 2))

    def shapes(self, dims):
        """Returns the shapes of the inputs and of C.

        If `dims` has one number more than headline() returns, its first number is the number of products in a batch.
        """
        *batch, K, M, N = (*dims, dims[-1], dims[-1]) if self.square else dims
        return *((*batch, K, M), (*batch, K, N))[: len(self.names)], (*batch, M, N)

    def given(self, matrices, dtype, filler):
        """Returns the inputs, given the matrices that a distribution has made.

        `filler` fills the places that are not read, except in KernelBench's own problems, which have zeros there.
        """
        filler = 0.0 if self.number else filler
        matrices = [dominant(X, dtype) for X in matrices] if self.inverse else matrices
        pairs = zip(matrices, self.keeps, strict=False)
        return [X.where(keep(torch.ones_like(X, dtype=torch.bool)), filler) for X, keep in pairs]

    def read(self, inputs):
        """Returns the inputs with zeros where they are not to be read, and all of G if it is given.

        The part of G where C is zero needs no zeros. It meets only zeros in the elements of a gradient that are kept.
        """
        return [keep(X) for X, keep in zip(inputs, (*self.keeps[:-1], torch.as_tensor), strict=False)]

    def truths(self, inputs, exact=False, tf32=False, one_tensor=False):
        """Yields the name and the Truth of C and, if `inputs` has G, of each gradient.

        `one_tensor` says that A and B are the same tensor. Its gradient is the sum of both gradients. Truth explains
        the other arguments.
        """
        if one_tensor and len(inputs) > len(self.names):
            C, (name, gradient), (_, other_gradient) = self.truths(inputs, exact, tf32)
            yield C
            yield name, gradient.plus(other_gradient)
            return
        read, results = self.read(inputs), self.results if len(inputs) > len(self.names) else ["C"]
        for name, keep, factors_of in zip(results, (self.keep, *self.keeps), self.factors, strict=False):
            roundings = None if name == "C" else self.roundings
            yield name, Truth(*factors_of(*read), keep, exact, tf32, self.inverse, roundings)


_PRODUCT = (lambda A, B, *_: (A, B), lambda A, B, G: (G, B.mT), lambda A, B, G: (A.mT, G))
_TRANSPOSED = (lambda A, B, *_: (A.mT, B), lambda A, B, G: (B, G.mT), lambda A, B, G: (A, G))
_GRAM = (lambda X, *_: (X, X.mT), lambda X, G: (torch.cat([G, G.mT], -1), torch.cat([X, X], -2)))  # dX = G X + G^T X
_INVERSE = (lambda L, *_: (L, None), lambda L, G: (L, G))

PRODUCTS = {
    "lower": Product("C = tril(A) tril(B)", "", "AB", (torch.tril,) * 3, _PRODUCT, 15),
    "upper": Product("C = triu(A) triu(B)", "Upper", "AB", (torch.triu,) * 3, _PRODUCT, 14),
    "transposed_a": Product("C = A.T B", "TransposedA", "AB", (torch.as_tensor,) * 3, _TRANSPOSED, 16, 8192),
    "triangular": Product(
        "C = tril(A) X", "Triangular", "AX", (torch.tril, torch.as_tensor, torch.as_tensor), _PRODUCT
    ),
    # A gradient may round G + G^T, or both G X and G^T X. Either error is at most u (|G| + |G^T|) |X|, and `roundings`
    # allows twice that.
    "gram": Product("C = X X.T", "Gram", "X", (torch.as_tensor,) * 2, _GRAM, roundings=2.0),
    # `roundings` allows a gradient in which C and C^T G are rounded. The gradient uses C twice.
    "inverse": Product("C = tril(L)^-1", "Inverse", "L", (torch.tril,) * 2, _INVERSE, size=128, roundings=1.5),
}

# ==== 2. Sizes ====


def label(dims):
    return "x".join(map(str, dims))


def some_sizes(random, max_size):
    """Yields two sizes per octave, up to `max_size`.

    About half of the sizes are multiples of a random power of two, or differ by 1 from such a multiple. The other sizes
    are random.
    """
    for half_octave in range(int(2 * math.log2(max_size)) + 1):
        size = int(2 ** ((half_octave + random.random()) / 2))
        step = 1 << random.randint(0, max(0, half_octave // 2 - 1))
        size = random.choice((size, size // step * step + random.choice((-1, 0, 1))))
        yield min(max(1, size), max_size)


def sizes_about_multiples(random, max_size):
    """Yields one size for each power of two from 8 to `max_size`.

    A size is an odd multiple of the power up to `max_size`, or that multiple plus 1.
    """
    for power in (1 << p for p in range(3, max_size.bit_length())):
        multiples = max_size // power
        yield (2 * random.randint(multiples // 8, (multiples - 1) // 2) + 1) * power + random.choice((0, 1))


def dims_of(sizes, random, problem, max_size):
    """Returns the dimensions of products, one product for each size that `sizes` yields.

    `sizes` is some_sizes or sizes_about_multiples.
    """
    # There is one list of sizes for N, or one list each for K, M and N. All lists but the first are shuffled below.
    first_column, *other_columns = (list(sizes(random, max_size)) for _ in problem.headline(1))
    return list(zip(first_column, *(random.sample(column, len(column)) for column in other_columns), strict=True))


def some_batches(number, random, problem, max_size):
    """Yields the dimensions of `number` batches. The first batch has one product. Each other batch has 2 to 1000.

    A batch has about as many elements as one product of the largest size, or fewer. Batches with odd and with even
    sides alternate, and the first batch has odd sides. Every second batch with even sides, from the first one on, has
    at least three products and sides that are multiples of 16, unless `max_size` is below 16.
    """
    for n in range(number):
        sides = (int(max_size / 2 ** random.uniform(1, 7)) for _ in problem.headline(1))
        step = 1 << random.randint(1, 4)
        is_aligned = n % 4 == 1 and max_size >= 16
        step, smallest = (16, 16) if is_aligned else (step, 2)
        dims = [side // step * step or smallest if n % 2 else side | 1 for side in sides]
        min_products = 3 if is_aligned else 2
        max_products = max(min_products, min(1000, (max_size // max(dims)) ** 2))
        yield random.randint(min_products, max_products) if n else 1, *dims


# ==== 3. Inputs ====


class Draw:
    """Draws random float64 matrices on a device.

    Each Draw has its own random stream. So its matrices depend on the seed and the name, but not on other Draws.
    """

    def __init__(self, seed, name, device, tf32=False):
        self.device, self.tf32 = device, tf32
        stream = torch.Generator(device).manual_seed(Random(f"{seed} {name}").getrandbits(63))
        self.odd = name % 2 if isinstance(name, int) else 0
        self.uniform, self.normal = (
            partial(f, dtype=torch.float64, device=device, generator=stream) for f in (torch.rand, torch.randn)
        )

    def decades(self, span, *shape):
        return 10.0 ** (span * (2 * self.uniform(*shape) - 1))

    # Each distribution makes A if `second` is 0, and B if it is 1. Masks are applied later. Each element of a product
    # is a sum of shape[0] terms.

    def identity(self, shape, *_):
        return torch.eye(*shape, dtype=torch.float64, device=self.device)

    def integers(self, shape, second, dtype):
        # The limit is such that the accumulator holds every bit of a sum of terms up to limit^2. 16-bit types have a
        # limit of 4, which keeps float16 from overflow.
        bits = 53 if dtype == torch.float64 else 24
        limit = 4 if dtype.itemsize == 2 else max(1, math.isqrt(2**bits // shape[0]))
        limit = min(limit, 1024) if self.tf32 else limit  # TF32 has 11 significant bits
        return torch.floor((2 * limit + 1) * self.uniform(*shape)) - limit

    def elimination(self, shape, second, dtype):
        """Returns the matrix of one elimination step of LU without pivoting.

        The diagonal has ones. The multipliers lie in one column below the diagonal and in one row to the right of the
        diagonal, so that lower and upper triangular problems both read some. The sizes of the multipliers differ by
        many powers of ten.
        """
        X, pivot, span = self.identity(shape), int(self.uniform(1) * min(shape)), 2 if dtype == torch.float16 else 8
        for line in (X[pivot:, pivot], X[pivot, pivot:]):
            line.copy_(self.normal(*line.shape) * self.decades(span, *line.shape))
        X[pivot, pivot] = 1
        return X

    def cholesky(self, shape, *_):
        """Returns the Cholesky factor of a Gram matrix, and its transpose above the diagonal.

        The pivots fall to about 1e-8. This number is added to the Gram matrix's diagonal, to keep the matrix positive
        definite. The matrix is computed without exp, because MKL's exp was once off by 3e-9 in one of two threads.
        """
        x = self.uniform(max(shape)).cpu().sort().values
        gram = 1 / (1 + ((x[:, None] - x) / 0.1) ** 2)
        L = torch.linalg.cholesky(gram.fill_diagonal_(1 + 1e-8))
        # With the transpose of L above the diagonal, an upper triangular problem reads a factor as well.
        return (L + L.tril(-1).mT)[: shape[0], : shape[1]].to(self.device)

    def scaled(self, shape, second, dtype, operand, dim, span=8):
        """Returns a normal matrix.

        If it is the matrix that `operand` names, its rows (dim = 0) or columns (dim = 1) are scaled by random numbers
        from 10^-span to 10^span.
        """
        lines = (1, shape[1]) if dim else (shape[0], 1)
        return self.normal(*shape) * self.decades(span * ("AB"[second] == operand), *lines)

    def graded(self, shape, second, dtype):
        """Returns a matrix whose elements are scaled by their index k, over which products sum.

        The scale runs from 1e-15 to 1e15 in A and inversely in B, so that every term of a product of A and B is of
        ordinary size.
        """
        X = self.normal(*shape)
        grade = 10.0 ** torch.linspace(-15, 15, shape[0], dtype=X.dtype, device=X.device)
        return X / grade[:, None] if second else X * (grade if shape[0] == shape[1] else grade[:, None])

    def about(self, shape, second, dtype, scales):
        return scales[second] * (0.5 + self.uniform(*shape)) * self.normal(*shape).sign()

    def apart(self, shape, second, dtype):
        """Returns a uniform matrix with one row or column of small elements."""
        X, (choice, position) = self.uniform(*shape), self.uniform(2).tolist()
        lines = X if choice < 0.5 else X.T
        lines[int(position * len(lines))] *= 1e-3 if dtype == torch.float16 else 1e-9
        return X

    def constant(self, shape, *_):
        """Returns a matrix whose elements are all the same power of two, so that every sum of products is exact."""
        return torch.full(shape, 2.0 ** (int(3 * self.uniform(1)) - 1), dtype=torch.float64, device=self.device)

    def with_entries(self, X, value=None):
        """Puts a number in two mirrored places of X, so that at least one of them is read. Returns X.

        Without a `value`, the number is drawn from 32 to 64.
        """
        (rows, cols), (p, q) = X.shape, self.uniform(2).tolist()
        X[int(p * rows), int(q * cols)] = X[int(q * rows), int(p * cols)] = 32 + 32 * p if value is None else value
        return X

    def single(self, shape, second, dtype, value):
        return self.with_entries(self.normal(*shape), 1e4 if dtype == torch.float16 else value)


def dominant(X, dtype):
    """Returns a lower triangular L whose inverse is of ordinary size.

    Below the diagonal, each element of X is divided by its row number, counted from 1. If X[0, 0] is negative, each
    element is divided by its squared distance from the diagonal instead. A diagonal element of L is the sum of the
    magnitudes to its left, with the sign of X[i, i]. If this sum is tiny, 1 + |X[i, i]| replaces it. In about half of
    the rows the diagonal element is up to four times as large, so that it has to be read.
    """
    index, diagonal = torch.arange(X.shape[-1], device=X.device)[:, None], X.diagonal(dim1=-2, dim2=-1)
    L = X.tril(-1) / torch.where(diagonal[..., :1, None] < 0, (index - index.mT).clamp_min(1) ** 2, index + 1)
    row_sums = L.abs().sum(-1)
    row_sums = torch.where(row_sums > 2.0 ** (-4 if dtype.itemsize == 2 else -40), row_sums, 1 + diagonal.abs())
    fraction = diagonal.abs() * 1024 % 1  # takes the place of a random number
    row_sums = row_sums * torch.where(fraction > 0.5, 6 * fraction - 2, 1.0)
    return L + torch.diag_embed(row_sums.copysign(diagonal))


ORDINARY = {
    "uniform": lambda draw, shape, *_: draw.uniform(*shape),  # KernelBench's own distribution
    "normal": lambda draw, shape, *_: draw.normal(*shape),
    # One matrix has elements of both signs: A if the Draw's name is even, or B if it is odd. The other matrix has
    # elements of one sign.
    "mixed": lambda draw, shape, second, _: (
        2 * draw.uniform(*shape) - 1 if second == draw.odd else draw.uniform(*shape)
    ),
}
WIDE = {  # these need float32's range of exponents; bfloat16 has the same range, but float16 has a smaller one
    "lognormal, sigma 3": lambda draw, shape, *_: torch.exp(3 * draw.normal(*shape)),
    "rows of A over 16 decades": partial(Draw.scaled, operand="A", dim=0),
    "columns of A over 16": partial(Draw.scaled, operand="A", dim=1),
    "rows of B over 16": partial(Draw.scaled, operand="B", dim=0),
    "columns of B over 16": partial(Draw.scaled, operand="B", dim=1),
    "graded inversely 1e+-15": Draw.graded,
    "one tiny entry": partial(Draw.single, value=1e-30),
}
EXTREME = {  # these lie near the ends of float32's range, and are for no other type and not for inverses
    # The factor keeps |A||B| below float32's largest number.
    "near overflow": lambda draw, shape, *_: math.sqrt(2.0**124 / shape[0]) * draw.normal(*shape),
    "about 1e18 and 1e-20": partial(Draw.about, scales=(1e18, 1e-20)),
    "about 1e-20": partial(Draw.about, scales=(1e-20, 1e-20)),
    "denormals and 1e10": partial(Draw.about, scales=(1e-39, 1e10)),
}
SEEMINGLY_UNIFORM = {  # a sample of elements looks uniform, but a few elements or one row or column differ
    "uniform, large entries": lambda draw, n, *_: draw.uniform(*n).where(
        draw.uniform(*n) * math.prod(n) > 16, 128 * draw.uniform(*n) - 64
    ),
    "uniform, one small line": Draw.apart,
    "uniform, one large entry": lambda draw, shape, *_: draw.with_entries(draw.uniform(*shape)),
}
# Hidden decoys have these inputs (see Products.timed_calls() in judge/problems.py). A sample of elements rarely has the
# entry or line that differs.
HIDDEN = ["uniform, one large entry", "uniform, one small line"]
HARD = {
    "integers": Draw.integers,
    "constant": Draw.constant,
    "sparse": lambda draw, shape, *_: draw.normal(*shape) * (draw.uniform(*shape) < 0.02),
    # One matrix is zero, A if the Draw's name is even, or B if it is odd. Its zeros have both signs.
    "zero": lambda draw, shape, second, _: draw.normal(*shape) * (second != draw.odd),
    "identity": lambda draw, shape, second, dtype: (
        1e-3 * draw.normal(*shape) if second == draw.odd else draw.identity(shape)
    ),
    "elimination": Draw.elimination,
    # The lower factor of LU with pivoting looks like this.
    "unit diagonal": lambda draw, shape, *_: (2 * draw.uniform(*shape) - 1).fill_diagonal_(1),
    "Cholesky, near singular": Draw.cholesky,
    **SEEMINGLY_UNIFORM,
    "rows of A over 2 decades": partial(Draw.scaled, operand="A", dim=0, span=1),
    "one huge entry": partial(Draw.single, value=1e30),
    **WIDE,
    **EXTREME,
}
DISTRIBUTIONS = ORDINARY | HARD


def gradient_of(kind, way, draw, dtype, shape, keep):
    """Returns dC. GRADIENTS explains `way`. `kind` says what dC looks like. "Expanded" means dimensions of stride 0.

    0  normal                                       5  normal, but zero where C is zero and in other places
    1  normal, with some rows of many scales        6  uniform, with one sign
    2  ones or minus ones, expanded                 7  normal, with columns of many scales
    3  one value, often small, expanded             8  normal, and the same for all of a batch
    4  one value per row or per column, expanded

    If `way` is not 0, dC of the kinds 1, 5, 6 and 7 may also be the same for all products of a batch.
    """
    # Scales lie between 10^-span and 10^span. float16 has a narrow span, so that no sum of a large product overflows.
    sign, span = 1 - 2 * draw.odd, 0.5 if dtype == torch.float16 else 8
    varies_by_column = kind == 7 or kind == 4 and way > 1
    scales = sign * draw.decades(span, *((*shape[:-2], 1, shape[-1]) if varies_by_column else (*shape[:-1], 1)))
    if kind == 7 and draw.uniform(1) < 0.75:
        # Each sum of a gradient begins at dC's first column, or ends at the last one. A large element there would hide
        # errors of all other terms, so the scales of these columns are made at most 1.
        ends = scales[..., [0, -1]].abs()
        scales[..., [0, -1]] = sign * torch.minimum(ends, 1 / ends)
    if kind in (2, 3, 4):
        value = torch.full_like(scales[..., :1, :1], sign)
        if kind == 3:
            value *= 10**-span if draw.uniform(1) < 0.75 else draw.decades(span, 1)
        return (scales if kind == 4 else value).to(dtype).expand(shape)
    # For kind 1, the probability that a row is scaled is drawn for the whole dC. So any share of the rows may be
    # scaled.
    has_scale = draw.uniform(*scales.shape) < draw.uniform(1) ** 3
    G = (draw.uniform if kind == 6 else draw.normal)(*shape) * scales.where(has_scale & (kind == 1) | (kind == 7), sign)
    G = (keep(G) * (draw.uniform(*shape) < draw.uniform(1) ** 3) if kind == 5 else G).to(dtype)
    return G[:1].expand(shape) if kind == 8 or kind and way and len(shape) > 2 and draw.uniform(1) < 0.75 else G


# Each pair is a kind of dC (see gradient_of) and a way. If the way is odd, each gradient is asked for by itself. The
# number way // 2 is the layout of dC in memory. Layout 0 is by rows, 1 by columns, 2 has padded rows, and 3 takes every
# second element.
GRADIENTS = [(kind, way) for kind in range(8) for way in range(4 if kind in (2, 3, 4) else 8)]


def inputs_of(name, draw, dtype, *shapes):
    """Returns A and, if two shapes are given, B. A batch has at most three different hard matrices, besides signs."""
    inputs = []
    for second, shape in enumerate(shapes):
        batch = math.prod(shape[:-2])
        if name in HARD and batch > 1:
            matrices = [DISTRIBUTIONS[name](draw, shape[-2:], second, dtype) for _ in range(min(batch, 3))]
            chosen = (draw.uniform(batch) * len(matrices)).long()
            X = torch.stack(matrices)[chosen].view(shape)
        else:
            X = DISTRIBUTIONS[name](draw, shape[-2:] if name in HARD else shape, second, dtype).expand(shape)
        inputs.append(X if name in ORDINARY | SEEMINGLY_UNIFORM else X * draw.normal(*shape[:-2], 1, 1).sign())
    return inputs


# ==== 4. Truth and errors ====


def slices(X, dim, bits):
    """Yields float64 parts whose sum is X (float64).

    `dim` is a dimension. In each line of a part along this dimension, all elements are multiples of one unit. The
    unit is 2^-bits times the next power of two above the largest |element| that remains in the line.
    """
    remainder = X.clone()
    while bool(remainder.any()):
        largest = remainder.abs().amax(dim, keepdim=True)
        unit = (largest / torch.frexp(largest)[0]).nan_to_num_(1.0) * 2.0**-bits  # exactly a power of two
        unit.clamp_min_(5e-324)  # the smallest float64
        yield (part := torch.round(remainder / unit) * unit)
        remainder -= part


def exact_product(X, Y):
    """Returns (high, low, |X||Y|) in float64, where X @ Y is high + low.

    If X and Y are not float64, `low` is zero, because their product in float64 is exact enough.
    """
    x, y = X.double(), Y.double()
    high, low = x.new_zeros(*X.shape[:-1], Y.shape[-1]) if X.dtype == torch.float64 else x @ y, x.new_zeros(1, 1)
    # A sum of n products of b-bit numbers is exact in float64 if 2 b + log2 n <= 53 (Ozaki et al., Numer. Algorithms
    # 59, 2012).
    bits = (53 - max(1, X.shape[-1]).bit_length()) // 2
    for a, b in product(slices(x, -1, bits), slices(y, -2, bits)) if X.dtype == torch.float64 else ():
        part = a @ b
        total = high + part  # Knuth's two-sum: `low` gets the rounding error of high + part
        back = total - high
        low = low + ((high - (total - back)) + (part - back))
        high = total
    one_sign = all(bool((Z >= 0).all()) or bool((Z <= 0).all()) for Z in (X, Y))
    return high, low, high.abs() if one_sign else x.abs() @ y.abs()


def inverse_of(L, G):
    """Returns (high, low, magnitude) of C = L^-1, where C is high + low, as for exact_product.

    The magnitude is |C||L||C|, because the error of substitution is at most a multiple of this. If G is given, the
    three returned matrices belong to the gradient dL = -C^T G C^T instead. It is computed in float64, with `low` zero.
    """
    L64, identity = L.double(), torch.eye(L.shape[-1], dtype=torch.float64, device=L.device)
    C = torch.linalg.solve_triangular(L64, identity, upper=False)
    magnitude, low = C.abs() @ (L64.abs() @ C.abs()), C.new_zeros(1, 1)
    if G is not None:
        G, T = G.double(), C.mT
        return -(T @ (G @ T)), low, magnitude.mT @ (G.abs() @ T.abs()) + T.abs() @ (G.abs() @ magnitude.mT)
    if L.dtype == torch.float64:  # a step of Newton's method: `low` becomes the correction of C
        product_high, product_low, _ = exact_product(L64, C)
        low = C @ (identity - product_high - product_low)
    return C, low, magnitude


def may_underflow(X, Y):
    """Marks the elements of X @ Y that have a nonzero term below the smallest normal float32.

    Returns a float64 matrix with 1.0 for these elements, and 0.0 for all other elements. Only exponents are compared,
    so elements whose terms are up to twice as large may be marked, too.
    """
    # If |x| lies between 2^(p - 1) and 2^p, and |y| between 2^(q - 1) and 2^q, |x y| is at least 2^(p + q - 2). So a
    # term can lie below 2^-126, the smallest normal number, only if p + q < -124. Below, x and y have the exponents p
    # and q. A zero gets a larger exponent than any number, so its terms are not marked.
    x, y = (torch.where(Z != 0, torch.frexp(Z)[1], 1 << 20) for Z in (X, Y))
    hits = torch.zeros(*X.shape[:-1], Y.shape[-1], dtype=torch.float64, device=X.device)
    for e in torch.unique(x[x < -124 - y.min()]).tolist():
        hits[(x == e).float() @ (y < -124 - e).float() > 0.5] = 1.0
    return hits


def allowed(dtype, terms, tf32=False, inverse=False):
    """Returns two bounds for the error of each element, as multiples of the element's magnitude.

    exact_product() or inverse_of() returns the magnitudes. Any solution may reach the first bound. The errors of an
    inaccurate reference raise it, up to the second bound. docs/judge.md explains both.
    """
    root, u = math.sqrt(max(1, terms)), torch.finfo(dtype).eps / 2
    if tf32:
        return 2.0**-10 + 2.0**-22 + root * 2.0**-23, 2.0**-8
    if dtype.itemsize == 2:
        return max(root, terms / 16) * 2.0**-23, 4 * u
    if dtype == torch.float64:
        return max(1e-6 * 2.0**-29, 2 * root * u * (not inverse)), 16 * root * u
    return 1e-6 if inverse else 1.5e-6, 16 * root * u


def elementwise_bound(dtype, terms, exact, magnitude, tf32=False, inverse=False):
    """Returns how much each element of a result may differ from `exact`, the result in float64.

    The bound is the first value of allowed() times `magnitude`, plus one rounding if the result has 16 bits. For a
    float64 product, `exact` is itself a sum with rounding errors. The bound is then the most by which two such sums in
    any order may differ.
    """
    info = torch.finfo(dtype)
    if dtype == torch.float64 and not inverse:
        return (terms + 1) * info.eps * magnitude
    bound = allowed(dtype, terms, tf32, inverse)[0] * magnitude
    if dtype.itemsize == 2:
        bound = bound + (exact.abs() + info.smallest_normal * (magnitude > 0)) * (info.eps / 2)
    return bound


class Truth:
    """Holds the exact result keep(X @ Y) of a call, and the error that each element may have.

    Its tensors are float64 and have the shape of the result, except that `low` may have a single element, 0.

    `exact` says that every term and every sum is representable, and `tf32` that torch allows TF32. If `inverse` is
    True, the result is keep(X^-1) or, if Y is G, the gradient. `roundings` is None for C, and Product.roundings for a
    gradient.
    """

    def __init__(self, X, Y, keep, exact=False, tf32=False, inverse=False, roundings=None):
        terms, info = X.shape[-1], torch.finfo(X.dtype)
        self.unit = info.eps / 2
        half_a_unit = info.eps / 2 * (X.dtype.itemsize == 2)  # the unit roundoff of a 16-bit dtype, 0 for other dtypes
        self.smallest_bound, self.largest_bound = (0.0, 0.0) if exact else allowed(X.dtype, terms, tf32, inverse)
        self.smallest_bound += (roundings or 0.0) * half_a_unit
        self.high, self.low, self.magnitude = inverse_of(X, Y) if inverse else exact_product(X, Y)
        # `forgiven` is an absolute error that each element may have besides its bound. A 16-bit result may be off by
        # half a unit in the last place, and at least by half the spacing of denormal numbers. A float32 sum may lose
        # terms that underflow, and a float32 result below the smallest normal number may become zero.
        forgiven = (self.high.abs() * half_a_unit).clamp_min_(info.smallest_normal * half_a_unit)
        if exact:  # the only error would be one rounding to the result's dtype, and the truth gets the same
            self.high, forgiven = self.high.to(X.dtype).double(), 0.0
        elif X.dtype == torch.float32:
            tiny = (self.high != 0) & (self.high.abs() < info.smallest_normal)
            forgiven = ((0.0 if inverse else may_underflow(X, Y) * terms) + tiny) * info.smallest_normal
        # Where keep() puts zeros, C has to be zero. A gradient is not needed there, so it may have any value whose
        # magnitude is at most `max_value`. No element of X @ Y can exceed the number of terms times max |X| times
        # max |Y|. For the inverse, `max_value` is the dtype's largest number.
        masked, max_value = keep(torch.ones_like(self.high)) == 0, 0.0
        if roundings is not None:
            max_value = info.max if inverse else terms * float(X.abs().max()) * float(Y.abs().max())
        self.high, self.low = keep(self.high), keep(self.low)
        self.forgiven, self.magnitude = (torch.where(masked, max_value, Z) for Z in (forgiven, self.magnitude))
        # If the magnitude exceeds the dtype's largest number, a partial sum may overflow. An infinite magnitude marks
        # an element that is not judged.
        self.magnitude[~(self.magnitude <= info.max)] = math.inf

    def plus(self, other):
        """Turns this Truth into that of the sum of two rounded results, and returns it.

        The sum is rounded once more.
        """
        self.high, self.low = self.high + other.high, self.low + other.low
        self.magnitude = self.magnitude + other.magnitude
        self.forgiven = self.forgiven + other.forgiven + self.high.abs() * self.unit
        self.smallest_bound = max(self.smallest_bound, other.smallest_bound)
        self.largest_bound = max(self.largest_bound, other.largest_bound)
        return self

    def errors(self, C):
        """Returns by how much each element of C is off, beyond `forgiven`, as a multiple of its magnitude.

        This componentwise error is Inf for an element that is NaN or Inf, unless the element is not judged.
        """
        errors = C.detach().double() - self.high - self.low
        errors = errors.abs_().sub_(self.forgiven).clamp_min_(0).nan_to_num_(nan=math.inf, posinf=math.inf)
        # 0 / 0 is no error, and an element that is not judged has no error either.
        return errors.div_(self.magnitude).nan_to_num_(nan=0.0, posinf=math.inf)

    def worst(self, C):
        """Returns the largest error of C, and the indices of the element that has it."""
        return worst_of(self.errors(C))

    @property
    def unjudged(self):
        return int(self.magnitude.isinf().sum())

    def bound(self, reference_worst):
        return max(self.smallest_bound, min(2 * reference_worst, self.largest_bound))


def worst_of(errors):
    # The indices are computed by hand. torch.unravel_index would import sympy, which takes 0.5 s. nonzero() would take
    # 16 bytes per element.
    flat_index = int(errors.argmax())
    indices = tuple(flat_index // math.prod(errors.shape[n + 1 :]) % size for n, size in enumerate(errors.shape))
    return float(errors[indices]), indices


def located(X, indices):
    return f"[{', '.join(map(str, indices))}] = {float(X[indices]):.9g}"


def first_difference(X, Y):
    """Returns a text with the first element whose bits differ, NaN included. Returns None if all bits are the same."""
    X, Y = (torch.view_as_real(Z) if Z.is_complex() else Z for Z in (X, Y))
    x, y = (Z.detach().view(getattr(torch, f"int{8 * Z.element_size()}")) for Z in (X, Y))
    if not torch.equal(x, y):
        indices = worst_of((x != y).byte())[1]
        return f"{located(X, indices)} and {float(Y[indices]):.9g}"


def fingerprint(X, chunk=1 << 24):
    """Returns one integer for each chunk of elements. It differs if the bits of one element differ.

    An integer is the sum of its chunk's elements times random odd factors. So the differences of several elements
    cancel by chance alone.
    """
    X = torch.view_as_real(X) if X.dtype == torch.complex128 else X
    bits = X.detach().contiguous().view(getattr(torch, f"int{8 * X.element_size()}")).flatten()
    stream = torch.Generator(X.device).manual_seed(1)
    size = (min(chunk, bits.numel()),)
    factors = 1 | torch.randint(-(2**63), 2**63 - 1, size, generator=stream, device=X.device)
    sums = [(part.long() * factors[: len(part)]).sum() for part in bits.split(chunk)]
    return torch.stack(sums)


# ==== 5. Times ====


def spread(samples):
    """Returns the median, the 10th and 90th percentile and the minimum of a list of times in microseconds."""
    tenths = statistics.quantiles([*samples, *samples[: len(samples) == 1]], n=10, method="inclusive")
    return {"median_us": tenths[4], "p10_us": tenths[0], "p90_us": tenths[8], "best_us": min(samples)}


def undisturbed(times):
    """Estimates the time of a call that no other process disturbs, in microseconds.

    The estimate is the median. If the median exceeds 1.25 times the 10th percentile, the estimate is this percentile.
    If the median exceeds 8 times the minimum, it is the minimum.
    """
    estimates = [
        times[name] for name, factor in (("p10_us", 1.25), ("best_us", 8)) if times["median_us"] > factor * times[name]
    ]
    return min(estimates, default=times["median_us"])


def duration(us):
    if us < 100:
        return f"{us:.1f} us"
    if us < 1000:
        return f"{us:.0f} us"
    return f"{us / 1e3:.2f} ms" if us < 1e5 else f"{us / 1e6:.2f} s"


class Moment:
    """Does on a CPU what torch.cuda.Event does on a GPU. elapsed_time is in milliseconds."""

    def record(self):
        self.time = time.perf_counter()

    def elapsed_time(self, end):
        return (end.time - self.time) * 1e3
