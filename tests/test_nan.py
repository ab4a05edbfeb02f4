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
    NN,
    NT,
    TN,
    UPPER,
    assert_bitwise,
    assert_same_specials,
    assert_within,
    expected_with_specials,
    generator,
    needs_cuda,
    normal,
    poison,
    product,
)
from hypothesis import given, settings
from hypothesis import strategies as st

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
