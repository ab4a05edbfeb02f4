"""NaN and Inf come out where the sum over the k that the operator has puts them, and nowhere else: not where a blocked sum would multiply
them by the zeros of an unread triangle."""

import math

import pytest
import torch
from helpers import (
    DEVICES,
    DTYPES,
    FAMILY,
    FAMILY_NAMES,
    FUNCTIONS,
    LOWER,
    MASKED,
    NN,
    NT,
    SYMMETRIC,
    TN,
    UPPER,
    assert_bitwise,
    assert_same_specials,
    assert_within,
    expected_with_specials,
    generator,
    masks,
    needs_cuda,
    normal,
    poison,
    product,
    sizes_for,
    unread,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

EXAMPLES = settings(max_examples=15, deadline=None, derandomize=True)
SPECIALS = [math.nan, math.inf, -math.inf]


def assert_specials(X, Y, contraction, structure, what="C"):
    C = product(X, Y, contraction, structure)
    exact, magnitude = expected_with_specials(X, Y, contraction, structure)
    assert C.shape == exact.shape
    assert_same_specials(C, exact, what)
    finite = exact.isfinite()
    # The finite elements are sums of finite terms; a rigorous bound of their error: the sum's, and one rounding to a 16-bit type.
    rounding = {torch.float32: 0.0, torch.float64: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[X.dtype]
    terms = X.shape[-1] + X.shape[-2]
    bound = (terms * (2.0**-52 if X.dtype == torch.float64 else 2.0**-23) * magnitude + rounding * exact.abs()).masked_fill(~finite, 1.0)
    if X.dtype == torch.float16:
        bound += 2.0**-25
    assert_within(C.double().masked_fill(~finite, 0.0), exact.masked_fill(~finite, 0.0), bound, what)


def with_specials(T, count, seed, zeros=0.1):
    """T with some elements NaN or Inf, and a share of zeros: 0 * Inf is a NaN where it is a term of the sum."""
    random = generator(seed)
    T = T.masked_fill((torch.rand(T.shape, generator=random) < zeros).to(T.device), 0.0)
    for _ in range(count if T.numel() else 0):
        at = tuple(int(torch.randint(0, n, (), generator=random)) for n in T.shape)
        T[at] = SPECIALS[int(torch.randint(0, 3, (), generator=random))]
    return T


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_nan_and_inf_come_where_the_sum_puts_them(model, contraction, structure, device):
    @EXAMPLES
    @given(
        st.one_of(st.integers(1, 40), st.sampled_from([65, 97, 130, 193])),
        st.integers(0, 6),
        st.integers(0, 6),
        st.sampled_from([(), (), (2,)]),
        st.sampled_from(DTYPES),
        st.booleans(),
        st.integers(0, 2**20),
    )
    def holds(N, in_x, in_y, batch, dtype, transposed, seed):
        X = with_specials(normal(*batch, N, N, seed=seed, dtype=dtype, device=device), in_x, seed)
        Y = with_specials(normal(*batch, N, N, seed=seed + 1, dtype=dtype, device=device), in_y, seed + 1)
        X, Y = poison(X, structure), poison(Y, structure)
        if transposed:
            X, Y = X.mT.contiguous().mT, Y.mT.contiguous().mT
        assert_specials(X, Y, contraction, structure)

    holds()


# One special element at each place that is special for blocks of 64, 96 and 128: corners, the diagonal, the two sides of an edge.
PLACES = [(0, 0), (63, 63), (64, 63), (64, 64), (95, 95), (96, 0), (127, 64), (128, 127), (128, 128), (199, 0), (199, 199), (130, 70)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_one_special_element_anywhere(model, contraction, structure, place, device):
    i, k = place if structure == LOWER else (place[1], place[0])
    finite = [poison(normal(200, 200, seed=s, device=device), structure) for s in (1, 2)]
    for value in SPECIALS:
        for operand in (0, 1):
            operands = [T.clone() for T in finite]
            operands[operand][i, k] = value
            assert_specials(*operands, contraction, structure, f"{value} at {[i, k]} of {'XY'[operand]}")


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("N", [500, 1300, 2048])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_nan_and_inf_at_a_large_size(model, contraction, structure, N, count, dtype):
    X = with_specials(normal(N, N, seed=N, dtype=dtype, device="cuda"), count, N, zeros=0.001)
    Y = with_specials(normal(N, N, seed=N + 1, dtype=dtype, device="cuda"), count - 1, N + 1, zeros=0.001)
    assert_specials(poison(X, structure), poison(Y, structure), contraction, structure)


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_nan_and_inf_in_large_tiles_and_their_splits(model, function, dtype):
    contraction, structure = FUNCTIONS[function]
    X = with_specials(normal(3720, 3720, seed=1, dtype=dtype, device="cuda"), 4, 1, zeros=0.001)
    Y = with_specials(normal(3720, 3720, seed=2, dtype=dtype, device="cuda"), 4, 2, zeros=0.001)
    assert_specials(poison(X, structure), poison(Y, structure), contraction, structure)


@pytest.mark.parametrize("N", [130, 300, 1100])  # on a CPU: one dense product, blocks of masked operands, blocks without a mask
@pytest.mark.parametrize("structure", [LOWER, UPPER])
@pytest.mark.parametrize("contraction", [NN, NT, TN])
def test_on_a_cpu_what_is_not_read_does_not_change_a_bit(model, contraction, structure, N):
    X, Y = (normal(2, N, N, seed=s) for s in (1, 2))
    cases = [(product(x, y, contraction, structure), x, y) for x, y in ((X, Y), (X[0], Y[0]))]
    for value in (math.nan, math.inf, 3e38):
        for expected, x, y in cases:
            assert_bitwise(product(poison(x, structure, value), poison(y, structure, value), contraction, structure), expected)
    if N < 1000:
        assert_specials(with_specials(X, 3, 5), with_specials(Y, 3, 6), contraction, structure)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_does_not_spread_as_in_a_dense_product(model, dtype, device):
    for N in (130, 450):
        A, B = torch.ones(N, N, dtype=dtype, device=device), torch.ones(N, N, dtype=dtype, device=device)
        A[100, 70] = math.nan
        C = model.tril_matmul(A, B)
        assert C.isnan().nonzero().tolist() == [[100, j] for j in range(71)]
        line = torch.arange(N, device=device)
        exact = (line[:, None] - line + 1).tril().to(dtype)
        assert torch.equal(C.nan_to_num(0.0), exact.where(~C.isnan(), 0.0))


@pytest.mark.parametrize("device", DEVICES)
def test_infinities_of_opposite_sign_make_a_nan(model, device):
    A, B = torch.ones(100, 100, device=device), torch.ones(100, 100, device=device)
    A[90, 20], A[90, 30] = math.inf, -math.inf
    C = model.tril_matmul(A, B)
    assert C[90, :21].isnan().all() and torch.isneginf(C[90, 21:31]).all() and C[90, 31:].isfinite().all()
    assert C[:90].isfinite().all() and C[91:].isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("N", [130, *(pytest.param(N, marks=needs_cuda) for N in (600, 1500))])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sums_that_overflow_are_infinite(model, function, N, device):
    contraction, structure = FUNCTIONS[function]
    A, B = torch.full((N, N), 2e38, device=device), torch.full((N, N), 1.0, device=device)
    C = getattr(model, function)(A, B)
    exact, _ = expected_with_specials(A, B, contraction, structure)
    assert_same_specials(C, exact.float().double())
    finite = exact.float().isfinite()
    assert_within(C.where(finite, 0.0), exact.where(finite, 0.0), 1e-6 * exact.abs())


def test_the_expectation_itself(model):
    # By hand: NN, lower, N = 2. C[1, 0] = A[1, 0] B[0, 0] + A[1, 1] B[1, 0], and A[0, 1], B[0, 1] are not read.
    X, Y = torch.tensor([[2.0, math.nan], [3.0, math.inf]]), torch.tensor([[5.0, math.nan], [0.0, 7.0]])
    exact, _ = expected_with_specials(X, Y, NN, LOWER)
    assert exact[0].tolist() == [10.0, 0.0] and math.isnan(exact[1, 0]) and exact[1, 1] == math.inf


# ---- Term by term: the slow referee of products and inverses. --------------------------------------------------------


def summed_by_terms(X, Y, contraction, structure):
    """Each element as Python adds up its terms, in float64; of the masks' terms alone."""
    *of, c = masks(structure)
    X, Y = X.double(), Y.double()
    has_x, has_y = (~unread(T, mask) for T, mask in zip((X, Y), of, strict=True))
    if contraction == TN:
        X, has_x = X.mT, has_x.mT
    if contraction == NT:
        Y, has_y = Y.mT, has_y.mT
    rows, columns = X.shape[0], Y.shape[1]
    x, y, has_x, has_y = X.tolist(), Y.tolist(), has_x.tolist(), has_y.tolist()
    sums = [[0.0] * columns for _ in range(rows)]
    for i in range(rows):
        for j in range(columns):
            for k in range(X.shape[1]):
                if has_x[i][k] and has_y[k][j]:
                    sums[i][j] += x[i][k] * y[k][j]
    exact = torch.tensor(sums, dtype=torch.float64).reshape(rows, columns)
    if c == SYMMETRIC:
        return exact
    return exact.masked_fill(unread(exact, c), 0.0)


def substituted_by_terms(L, unitriangular):
    """The inverse, column by column: X[i, j] from X[j..i-1, j], in float64."""
    L, N = L.double(), L.shape[-1]
    X = torch.zeros(N, N, dtype=torch.float64)
    for j in range(N):
        for i in range(j, N):
            total = torch.tensor(float(i == j), dtype=torch.float64)
            for k in range(j, i):
                total -= L[i, k] * X[k, j]
            X[i, j] = total if unitriangular else total / L[i, i]  # a tensor may be divided by zero
    return X


def assert_same_elements(found, exact, what):
    """NaN and Inf as in `exact`, and all other elements near it: of small whole numbers, or of a few terms."""
    assert_same_specials(found, exact, what)
    finite = [T.double().nan_to_num(0.0, 0.0, 0.0) for T in (found, exact)]
    tolerance = 1e-12 if found.dtype == torch.float64 else 1e-4
    torch.testing.assert_close(*finite, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def sprinkled(*shape, seed, share):
    """Small whole numbers, which every dtype multiplies exactly; a share of them NaN, Inf and -Inf, sometimes one of these alone."""
    random = generator(seed)
    T = torch.randint(-2, 3, shape, generator=random).double()
    values = torch.tensor([SPECIALS, [math.inf] * 3, [math.nan] * 3, [math.inf, -math.inf, math.inf]][seed % 4], dtype=torch.float64)
    drawn = values[torch.randint(0, 3, shape, generator=random)]
    return torch.where(torch.rand(shape, generator=random) < share, drawn, T)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("contraction", "structure"), [*FAMILY, *MASKED.values()], ids=[*FAMILY_NAMES, *MASKED])
def test_products_as_their_terms_add_up(model, contraction, structure, dtype, device):
    for seed, share in enumerate((0.02, 0.05, 0.2, 0.5, 0.02, 0.05, 0.02, 1.0)):
        M, columns, K = sizes_for(structure, 5 + 6 * (seed % 4), 7)
        X = sprinkled(*((K, M) if contraction == TN else (M, K)), seed=seed, share=share)
        Y = sprinkled(*((columns, K) if contraction == NT else (K, columns)), seed=seed + 100, share=share * (seed % 3))
        Y = X if masks(structure)[2] == SYMMETRIC else Y
        found = product(X.to(device, dtype), Y.to(device, dtype), contraction, structure).cpu()
        assert_same_elements(found, summed_by_terms(X, Y, contraction, structure), f"seed {seed}")


@pytest.mark.parametrize("structure", [LOWER, UPPER], ids=["lower", "upper"])
@pytest.mark.parametrize("contraction", [NN, NT, TN])
def test_products_in_blocks_as_their_terms_add_up(model, contraction, structure):
    """Whole numbers again, so that any order of the terms has the same sums: in blocks, and as a batch of many matrices."""
    for seed, (N, batch) in enumerate([(300, 1), (257, 2), (200, 12), (129, 3)]):
        X, Y = (sprinkled(batch, N, N, seed=seed + more, share=2e-4).float() for more in (0, 101))
        exact, _ = expected_with_specials(X, Y, contraction, structure)
        assert_same_elements(product(X, Y, contraction, structure), exact, f"{batch} of {N}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_of_both_orders_as_their_terms_add_up(model, function, device):
    """With the gradient H of dA, that of G is the product with H in the place of A, and that of B the gradient of this product."""
    contraction, structure = FUNCTIONS[function]
    formulas = {NN: ((NT, "GB"), (TN, "AG")), TN: ((NT, "BG"), (NN, "AG"))}[contraction]
    for seed in range(8):
        tensors = {name: sprinkled(21, 21, seed=8 * seed + at, share=0.01 + 0.3 * (seed == 7)) for at, name in enumerate("ABGH")}
        A, B, G = (tensors[name].float().to(device).requires_grad_() for name in "ABG")
        first = torch.autograd.grad(getattr(model, function)(A, B), (A, B), G, create_graph=True)
        for found, (of, names) in zip(first, formulas, strict=True):
            exact = summed_by_terms(*(tensors[name] for name in names), of, structure)
            assert_same_elements(found.detach().cpu(), exact, f"seed {seed}, {names}")
        dG, dB = torch.autograd.grad(first[0], (G, B), tensors["H"].float().to(device))
        of, names = formulas[1]
        for found, kind, of_names in ((dG, contraction, "HB"), (dB, of, names.replace("A", "H"))):
            exact = summed_by_terms(*(tensors[name] for name in of_names), kind, structure)
            assert_same_elements(found.cpu(), exact, f"seed {seed}, {of_names}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("unitriangular", [False, True], ids=["", "unitriangular"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverses_as_substitution_has_them(model, dtype, unitriangular, device):
    """Signs of all kinds, so that Inf - Inf comes late in some columns and never in others; zeros of both signs on the diagonal."""
    for seed in range(60):
        random = generator(seed)
        N = (1, 2, 3, 5, 9, 14)[seed % 6]
        L = torch.randint(-1, 2, (3, N, N), generator=random).double()
        L = L if seed % 3 else -L.abs()
        diagonal = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)[torch.randint(0, 3, (3, N), generator=random)]
        L.diagonal(dim1=-2, dim2=-1).copy_(diagonal if seed % 3 else diagonal.abs())
        for _ in range(seed % 8):
            matrix, i, k = (int(torch.randint(0, n, (), generator=random)) for n in (3, N, N))
            L[matrix, max(i, k), min(i, k)] = [*SPECIALS, math.inf, 0.0, -0.0][int(torch.randint(0, 6, (), generator=random))]
        found = model.triangular_inverse(L.to(device, dtype), unitriangular=unitriangular).cpu()
        for X, of in zip(found, L, strict=True):
            assert_same_elements(X, substituted_by_terms(of, unitriangular), f"seed {seed}: {of.tril().tolist()}")


def test_the_referees_themselves(model):
    X, Y = torch.tensor([[2.0, math.nan], [3.0, math.inf]]), torch.tensor([[5.0, math.nan], [0.0, 7.0]])
    exact = summed_by_terms(X, Y, NN, LOWER)
    assert exact[0].tolist() == [10.0, 0.0] and math.isnan(exact[1, 0]) and exact[1, 1] == math.inf
    L = torch.tensor([[2.0, math.nan], [math.inf, 4.0]])
    assert substituted_by_terms(L, False).tolist() == [[0.5, 0.0], [-math.inf, 0.25]]


# ---- Next to NaN and Inf: the bits of other elements and matrices, and the time. -------------------------------------


PATTERNS = {
    "one": lambda T, value: T[..., 0, T.shape[-1] // 2, T.shape[-1] // 2].fill_(value),
    "row": lambda T, value: T[..., 0, -1, :].fill_(value),
    "column": lambda T, value: T[..., 0, :, 0].fill_(value),
    "all": lambda T, value: T[..., 0, :, :].fill_(value),
}


@pytest.mark.parametrize("value", SPECIALS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("shape", [(3, 100, 100), (3, 300, 300), (20, 150, 150)], ids=str)
def test_neighbours_in_a_batch_keep_their_bits_on_a_cpu(model, shape, pattern, value):
    X, Y = (normal(*shape, seed=seed) for seed in (1, 2))
    of = [*((contraction, LOWER) for contraction in (NN, NT, TN)), MASKED["L X"], MASKED["X U"], MASKED["L U"]]
    for contraction, structure in of:
        clean = product(X, Y, contraction, structure)
        for operand in (0, 1):
            operands = [X.clone(), Y.clone()]
            PATTERNS[pattern](operands[operand], value)
            C = product(*operands, contraction, structure)
            assert not C[0].isfinite().all()
            assert_bitwise(C[1:], clean[1:])
            zeros = [T.nan_to_num(0.0, 0.0, 0.0) for T in operands]
            finite = C[0].isfinite()
            assert_bitwise(C[0].where(finite, 0.0), product(*zeros, contraction, structure)[0].where(finite, 0.0))
    L = X.tril() / shape[-1] ** 0.5 + 2 * torch.eye(shape[-1])
    clean = model.triangular_inverse(L)
    PATTERNS[pattern](L, value)
    inverse = model.triangular_inverse(L)
    assert not torch.equal(inverse[0], clean[0])  # Inf on the diagonal makes a row of zeros
    assert_bitwise(inverse[1:], clean[1:])


def test_beside_a_row_of_nan_sums_are_as_accurate_as_without(model):
    N = 2048
    A, B = (normal(N, N, seed=seed).abs() for seed in (1, 2))
    clean = model.tril_matmul(A, B)
    A[-1] = math.nan
    C = model.tril_matmul(A, B)
    assert C[-1].isnan().all()
    assert_bitwise(C[:-1], clean[:-1])


class Counter(TorchDispatchMode):
    """Counts the operators of torch that are called."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += 1
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("value", SPECIALS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_nan_and_inf_take_a_few_operators_however_many_there_are(model, pattern, value):
    """The suite `nan` of benchmark.py measures the time. A product or a solution for each k would take a multiple of N operators."""
    N = 450
    A, B = (normal(1, N, N, seed=seed) for seed in (1, 2))
    L = A.tril() / N**0.5 + 2 * torch.eye(N)
    counts = []
    for change in (lambda T, value: T, PATTERNS[pattern]):
        for T in (A, L):
            change(T, value)
        with Counter() as products:
            model._product_by_torch(A, B, NN, LOWER)
        with Counter() as inverses:
            model._inverse_by_torch(L, False)
        counts.append((products.count, inverses.count))
    (product_count, inverse_count), with_specials = counts
    assert with_specials[0] < 4 * product_count + 100 and with_specials[1] < inverse_count + 200
