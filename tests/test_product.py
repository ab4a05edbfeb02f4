"""The product is right: every element against float64, for any size, strides, batch, dtype and contraction, whatever stands in the unread
triangle and in freed memory; inputs stay as they are, and the same input gives the same bits. What a CUDA stream may expect holds too.
"""

import importlib.util
import itertools
import math
import subprocess
import sys
import time
import types

import helpers
import pytest
import torch
from helpers import (
    DENSE,
    DEVICES,
    DTYPES,
    FAMILY,
    FAMILY_NAMES,
    FUNCTIONS,
    LAYOUTS,
    LOWER,
    NN,
    NT,
    TN,
    UPPER,
    assert_bitwise,
    assert_product,
    assert_within,
    bits,
    needs_cuda,
    needs_hopper,
    needs_two_gpus,
    normal,
    poison,
    product,
    truth,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from judge import measures

EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True)
FEWER_EXAMPLES = settings(max_examples=12, deadline=None, derandomize=True)

# On a GPU that has these kernels, triangles of 640, 1000 and the first four large sizes reach the split-tf32 kernel, and the last three
# the fp16x3 kernel.
SIZES = [0, 1, 63, 64, 65, 127, 128, 129, 257, 640, 1000]
LARGE_SIZES = [449, 700, 1151, 1280, 1500, 2048, 2100]

# ---- Any layout. -----------------------------------------------------------------------------------------------------

BATCHES = [((), ()), ((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((1,), (4,)), ((2, 3), (2, 3)), ((0,), (1,)), ((3, 1, 2), (2, 1))]


def laid_out(V, layout, structure):
    """V in this layout, NaN in the unread triangle, unless its elements are elements of the other one as well."""
    return LAYOUTS[layout](V if layout in ("equal rows", "equal columns", "one value") else poison(V, structure))


sizes = st.one_of(st.integers(0, 70), st.sampled_from([96, 97, 127, 128, 129, 192, 193]))
layouts = st.sampled_from(sorted(LAYOUTS))
seeds = st.integers(0, 2**20)


def shapes_of(function, N, K, M):
    return ((K, M), (K, N)) if function == "transposed_a_matmul" else ((N, N), (N, N))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_any_layout_batch_and_dtype(model, function, device):
    contraction, structure = FUNCTIONS[function]

    @EXAMPLES
    @given(sizes, sizes, sizes, layouts, layouts, st.sampled_from(BATCHES), st.sampled_from(DTYPES), seeds)
    def holds(N, K, M, a_layout, b_layout, batches, dtype, seed):
        a_shape, b_shape = shapes_of(function, N, K, M)
        A = normal(*batches[0], *a_shape, seed=seed, dtype=dtype, device=device)
        B = normal(*batches[1], *b_shape, seed=seed + 1, dtype=dtype, device=device)
        A, B = laid_out(A, a_layout, structure), laid_out(B, b_layout, structure)
        before = bits(A), bits(B)
        C = getattr(model, function)(A, B)
        assert_product(C, A, B, contraction, structure)
        assert torch.equal(bits(A), before[0]) and torch.equal(bits(B), before[1]), "an input was modified"

    holds()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_any_contraction(model, contraction, structure, device):
    @FEWER_EXAMPLES
    @given(sizes, sizes, sizes, layouts, layouts, st.sampled_from([(), (), (2,), (2, 2)]), st.sampled_from(DTYPES), seeds)
    def holds(M, N, K, x_layout, y_layout, batch, dtype, seed):
        if structure != DENSE:
            M = K = N
        X = normal(*batch, *((K, M) if contraction == TN else (M, K)), seed=seed, dtype=dtype, device=device)
        Y = normal(*batch, *((N, K) if contraction == NT else (K, N)), seed=seed + 1, dtype=dtype, device=device)
        X, Y = LAYOUTS[x_layout](X), LAYOUTS[y_layout](Y)
        assert_product(product(X, Y, contraction, structure), X, Y, contraction, structure)

    holds()


@pytest.mark.parametrize("device", DEVICES)
def test_many_leading_dimensions_in_unrelated_orders(model, device):
    A = normal(2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 9, 9, seed=1, device=device)
    B = normal(2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 9, 9, seed=2, device=device).permute(9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 10)
    assert_product(model.tril_matmul(A, B), A, B, NN, LOWER)
    none = A[..., :0, :].expand(2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 9)  # is contiguous, as torch has it
    assert_product(model.transposed_a_matmul(none, B[..., :0, :]), none, B[..., :0, :].expand_as(none), TN, DENSE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("batch", "N"), [((1000,), 5), ((70000,), 2), ((3, 40), 64), ((17,), 130), ((600,), 33), ((7, 6), 150), ((0, 2), 400)]
)
def test_a_large_batch(model, batch, N, device):
    A, B = normal(*batch, N, N, seed=N, device=device), normal(N, N, seed=N + 1, device=device)
    assert_product(model.tril_matmul(A, B), A, B, NN, LOWER)
    assert_product(model.triu_matmul(B, A), B, A, NN, UPPER)
    assert_product(model.transposed_a_matmul(A, A), A, A, TN, DENSE)


@pytest.mark.parametrize("device", DEVICES)
def test_as_many_leading_dimensions_broadcast_at_a_size_that_is_computed_in_blocks(model, device):
    A, B = normal(2, 1, 330, 330, seed=1, device=device), normal(1, 3, 330, 330, seed=2, device=device)
    assert_product(model.tril_matmul(A, B), A, B, NN, LOWER)


# ---- Any size. -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("N", SIZES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sizes(model, function, N, device):
    contraction, structure = FUNCTIONS[function]
    for dtype in DTYPES if N <= 257 else (torch.float32, torch.float64):
        A, B = normal(N, N, seed=N, dtype=dtype, device=device), normal(N, N, seed=N + 1, dtype=dtype, device=device)
        C = getattr(model, function)(poison(A, structure), poison(B, structure))
        assert_product(C, A, B, contraction, structure, f"{function} of {dtype} at N = {N}")


@needs_cuda
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("N", [*LARGE_SIZES, 4096])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_large_sizes(model, contraction, structure, N, distribution):
    fill = {"uniform": torch.rand, "normal": torch.randn}[distribution]
    X, Y = (fill(N, N, generator=torch.Generator("cuda").manual_seed(N + s), device="cuda") for s in (0, 1))
    C = product(poison(X, structure), poison(Y, structure), contraction, structure)
    assert_product(C, X, Y, contraction, structure)


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_large_sizes_of_other_dtypes(model, contraction, structure, dtype):
    X, Y = normal(2100, 2100, seed=1, dtype=dtype, device="cuda"), normal(2100, 2100, seed=2, dtype=dtype, device="cuda")
    C = product(poison(X, structure), poison(Y, structure), contraction, structure)
    assert_product(C, X, Y, contraction, structure)


HALF_DTYPES = [torch.float16, torch.bfloat16]
# Below and above the edges of blocks of 64 and of tiles of 128 and 256; of 16 bytes a row or not; for clusters that share k, for single
# CTAs, of which some take two tiles, and for pairs, whose first tiles are halved.
HALF_SIZES = [1, 8, 127, 200, 513, 1000, 1501, 2200, 3720]


@needs_cuda
@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("N", HALF_SIZES)
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_half_precision(model, contraction, structure, N, dtype):
    X, Y = (poison(normal(N, N, seed=s, dtype=dtype, device="cuda"), structure) for s in (1, 2))
    for operands in ((X, Y), (X.mT.contiguous().mT, Y), (X, LAYOUTS["slice"](Y)), (LAYOUTS["transposed steps"](X), Y.mT.contiguous().mT)):
        assert_product(product(*operands, contraction, structure), *operands, contraction, structure)


@needs_cuda
@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize(
    ("K", "M", "N"),
    [(1, 1, 1), (64, 1, 300), (3000, 5, 7), (8192, 129, 260), (70, 1000, 1300), (520, 2100, 4000), (300, 5000, 1), (300, 1, 5000)],
)
def test_half_precision_of_rectangles(model, K, M, N, dtype):
    A, B = normal(K, M, seed=1, dtype=dtype, device="cuda"), normal(K, N, seed=2, dtype=dtype, device="cuda")
    for operands, contraction in (((A, B), TN), ((A.mT, B), NN), ((A.mT, B.mT), NT), ((A.mT.contiguous(), B.mT.contiguous()), NT)):
        assert_product(product(*operands, contraction, DENSE), *operands, contraction, DENSE)


@needs_cuda
@pytest.mark.parametrize("N", [96, 130, 600, 1502])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_half_precision_of_a_batch(model, function, N):
    A, B = normal(2, 1, N, N, seed=1, dtype=torch.float16, device="cuda"), normal(3, N, N, seed=2, dtype=torch.float16, device="cuda").mT
    last = B.permute(1, 2, 0).contiguous().permute(2, 0, 1)  # the batch varies fastest
    many = A[(None,) * 8], B  # more leading dimensions than a Product has
    for operands in ((A, B), (A.expand(2, 3, N, N), last), (A[:, 0, None, 2:, 2:], B[1:, 2:, 2:]), many):
        assert_product(getattr(model, function)(*operands), *operands, *FUNCTIONS[function])


SHAPES = [(0, 3, 4), (5, 0, 4), (5, 4, 0), (0, 0, 0), (1, 1, 1), (65, 130, 7), (7, 1, 300), (300, 200, 100), (129, 64, 257)]
LARGE_SHAPES = [
    (500, 300, 400),
    (401, 700, 129),
    (5000, 64, 257),
    (5000, 70, 6000),
    (2100, 1300, 3000),
    (1000, 3000, 5000),
    (5000, 129, 4000),
    (64, 4097, 4095),
    (20000, 256, 256),
    (1, 3000, 3000),
    (3, 70000, 5),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("K", "M", "N"), SHAPES)
def test_rectangles(model, K, M, N, device):
    check_rectangles(model, K, M, N, device)


def check_rectangles(model, K, M, N, device):
    A, B = normal(K, M, seed=1, device=device), normal(K, N, seed=2, device=device)
    assert_product(model.transposed_a_matmul(A, B), A, B, TN, DENSE)
    assert_product(product(A.mT, B, NN, DENSE), A.mT, B, NN, DENSE)
    assert_product(product(A.mT, B.mT, NT, DENSE), A.mT, B.mT, NT, DENSE)


@needs_cuda
@pytest.mark.parametrize(("K", "M", "N"), LARGE_SHAPES)
def test_large_rectangles(model, K, M, N):
    check_rectangles(model, K, M, N, "cuda")


@needs_cuda
@pytest.mark.parametrize("layout", ["transposed", "slice", "steps", "transposed steps", "equal rows", "equal columns"])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
@pytest.mark.parametrize("N", [700, 1411])
def test_layouts_at_a_large_size(model, contraction, structure, layout, N):
    X, Y = (LAYOUTS[layout](normal(N, N, seed=s, device="cuda")) for s in (1, 2))
    for operands in ((X, Y), (X, Y.contiguous()), (X.contiguous(), Y)):
        assert_product(product(*operands, contraction, structure), *operands, contraction, structure)


@needs_cuda
@pytest.mark.parametrize("N", [460, 1400, 1500])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_broadcast_batch_at_a_large_size(model, function, N):
    A, B = normal(2, 1, N, N, seed=1, device="cuda"), normal(3, N, N, seed=2, device="cuda").mT
    C = getattr(model, function)(A, B)
    assert_product(C, A, B, *FUNCTIONS[function])


# ---- The unread triangle, the inputs, the bits. ----------------------------------------------------------------------

SIZES_BY_DEVICE = [("cpu", 300), *(pytest.param("cuda", N, marks=needs_cuda) for N in (300, 700, 2048))]


@pytest.mark.parametrize(("device", "N"), SIZES_BY_DEVICE)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("structure", [LOWER, UPPER], ids=["lower", "upper"])
@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_the_unread_triangle_changes_no_bit(model, contraction, structure, value, device, N):
    X, Y = normal(N, N, seed=3, device=device), normal(N, N, seed=4, device=device)
    clean = product(poison(X, structure, 0.0), poison(Y, structure, 0.0), contraction, structure)
    assert_bitwise(product(poison(X, structure, value), poison(Y, structure, value), contraction, structure), clean)


@pytest.mark.parametrize(("device", "N"), SIZES_BY_DEVICE)
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_inputs_stay_as_they_are(model, contraction, structure, device, N):
    X, Y = normal(N, N, seed=3, device=device), normal(N, N, seed=4, device=device)
    X[1, 0], Y[2, 1], X[0, 1] = math.nan, -0.0, math.inf
    before = bits(X).clone(), bits(Y).clone()
    C = product(X, Y, contraction, structure)
    C.fill_(7.0)
    assert torch.equal(bits(X), before[0]) and torch.equal(bits(Y), before[1])


@pytest.mark.parametrize(("device", "N"), SIZES_BY_DEVICE)
def test_one_tensor_may_be_both_operands(model, device, N):
    batch = normal(2, N, N, seed=3, device=device)
    A = batch[0]
    for X, Y in ((A, A), (A, A.mT), (A, batch), (batch, A)):
        for function, family in FUNCTIONS.items():
            assert_product(getattr(model, function)(X, Y), X, Y, *family, function)


@pytest.mark.parametrize(("device", "N"), SIZES_BY_DEVICE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_integers_are_exact(model, contraction, structure, dtype, device, N):
    # All partial sums are integers that the dtype (its results too) holds exactly; bfloat16 ends at 256.
    largest = {torch.float32: 8, torch.float64: 1000, torch.float16: 1, torch.bfloat16: 1}[dtype]
    N = {torch.float16: min(N, 1500), torch.bfloat16: 200}.get(dtype, N)
    X, Y = (torch.randint(-largest, largest + 1, (N, N), generator=helpers.generator(s)).to(device, dtype) for s in (5, 6))
    exact, _ = helpers.truth(X, Y, contraction, structure)
    assert_within(product(X, Y, contraction, structure), exact, torch.zeros_like(exact))


@pytest.mark.parametrize(("device", "N"), SIZES_BY_DEVICE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_the_same_input_gives_the_same_bits(model, contraction, structure, dtype, device, N):
    X, Y = normal(N, N, seed=7, dtype=dtype, device=device), normal(N, N, seed=8, dtype=dtype, device=device)
    first = product(X, Y, contraction, structure)
    for _ in range(3 if device == "cpu" else 20):
        assert_bitwise(product(X, Y, contraction, structure), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("device", DEVICES)
def test_the_identity_changes_no_bit(model, device, dtype):
    """float32 on a GPU: of elements of 22 bits. Two tf32, of 11 bits each, are what the tensor cores are given of one, and hold no more."""
    for N in (1, 65, 200):
        A, identity = normal(N, N, seed=9, dtype=dtype, device=device), torch.eye(N, dtype=dtype, device=device)
        if dtype == torch.float32 and device == "cuda":
            A = (A.view(torch.int32) & ~3).view(torch.float32)  # of the 24 bits the last two
        for function, structure in (("tril_matmul", LOWER), ("triu_matmul", UPPER)):
            part = helpers.read_part(A, structure)
            assert torch.equal(getattr(model, function)(A, identity), part), (function, N)
            assert torch.equal(getattr(model, function)(identity, A), part), (function, N)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "name,function,operands",
    [
        ("ModelNew", "tril_matmul", 2),
        ("UpperModelNew", "triu_matmul", 2),
        ("TransposedAModelNew", "transposed_a_matmul", 2),
        ("TriangularModelNew", "triangular_matmul", 2),
        ("GramModelNew", "gram", 1),
        ("InverseModelNew", "triangular_inverse", 1),
    ],
)
def test_the_models_call_the_functions(model, name, function, operands, device):
    module = getattr(model, name)(*model.get_init_inputs()).to(device)
    assert not list(module.parameters()) and not list(module.buffers())
    given = [normal(100, 100, seed=seed, device=device) + 100 * torch.eye(100, device=device) for seed in range(operands)]
    assert_bitwise(module(*given), getattr(model, function)(*given))


@needs_hopper
def test_batch_strides_that_a_tensor_map_cannot_count(model):
    """A place in a tensor map is an int of steps that all batch strides have in common: of eight elements here, and one stride is 2^31."""
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("less than 40 GiB of GPU memory are free")
    N, far = 512, 2**34
    memory = torch.empty(far + N * N + 8, dtype=torch.float16, device="cuda")
    X = memory.as_strided((2, 2, N, N), (far, 8, N, 1))
    for begin in (0, far):
        memory[begin:][: N * N + 8].normal_()
    Y = normal(2, 2, N, N, seed=1, dtype=torch.float16, device="cuda")
    for contraction, operands in ((NN, (X, Y)), (NN, (Y, X)), (NT, (X, Y)), (TN, (X, Y))):
        assert_product(product(*operands, contraction, LOWER), *operands, contraction, LOWER)


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [15, 17, 19, 22])
def test_a_short_tile_behind_half_of_a_small_one(model, batch, dtype):
    """Both write C by way of the same place of shared memory."""
    X, Y = (normal(batch, 320, 320, seed=seed, dtype=dtype, device="cuda") for seed in (1, 2))
    for contraction in (NN, NT, TN):
        C = product(X, Y, contraction, LOWER)
        assert_product(C, X, Y, contraction, LOWER)
        for _ in range(20):
            assert_bitwise(product(X, Y, contraction, LOWER), C)


def test_the_inputs_of_the_benchmarks(model):
    inputs = model.get_inputs()
    for X in inputs:
        assert tuple(X.shape) == (4096, 4096) and X.dtype == torch.float32 and X.device.type == ("cuda" if helpers.HAS_CUDA else "cpu")
        assert torch.equal(X, X.tril()) and (X.diagonal() > 0).float().mean() > 0.99
    assert not torch.equal(*inputs)


def test_meta_tensors_give_shape_and_dtype(model):
    A, B = torch.empty(2, 1, 7, 7, device="meta", dtype=torch.float16), torch.empty(3, 7, 7, device="meta", dtype=torch.float16)
    C = model.tril_matmul(A, B)
    assert (C.shape, C.dtype, C.device.type) == ((2, 3, 7, 7), torch.float16, "meta")
    C = model.tril_matmul(A.requires_grad_(), B)
    assert torch.autograd.grad(C, A, C)[0].shape == A.shape
    A, B = torch.empty(5, 3, device="meta"), torch.empty(5, 4, device="meta")
    assert model.transposed_a_matmul(A, B).shape == (3, 4)


# ---- Hard inputs: float32 accuracy, componentwise, whatever the sizes of the elements. -------------------------------


def powers_of_ten(low, high, *shape, seed):
    exponent = low + (high - low) * torch.rand(*shape, generator=generator_of(seed), dtype=torch.float64)
    return 10.0**exponent


def generator_of(seed):
    return helpers.generator(1000 + seed)


def signed(T, seed):
    return T * (2 * torch.randint(0, 2, T.shape, generator=generator_of(seed)) - 1)


def gaussian(N, seed):
    return torch.randn(N, N, generator=generator_of(seed), dtype=torch.float64)


def single(T, *entries):
    for i, k, value in entries:
        T[int(i * len(T)), int(k * len(T))] = value
    return T


def drawn(name):
    """A hard input of check.py's."""
    return lambda N: measures.inputs_of(name, measures.Draw(1, name, torch.device("cpu")), torch.float32, (N, N), (N, N))


def denormals(N, seed, share):
    tiny = signed(powers_of_ten(-44, -38.1, N, N, seed=seed), seed + 1)
    ordinary = gaussian(N, seed + 2)
    return torch.where(torch.rand(N, N, generator=generator_of(seed + 3)) < share, tiny, ordinary)


# Each gives two matrices, of which the product's structure picks a triangle (the lower one of what is given). No product of two of their
# elements leaves the range of float32.
HARD = {name: drawn(name) for name in measures.HARD if name != "about 1e-20"} | {
    "signed lognormal": lambda N: (signed(torch.exp(3 * gaussian(N, 1)), 3), signed(torch.exp(3 * gaussian(N, 2)), 4)),
    "both scaled": lambda N: (
        gaussian(N, 1) * powers_of_ten(-8, 8, N, 1, seed=3),
        gaussian(N, 2) * powers_of_ten(-8, 8, 1, N, seed=4),
    ),
    "rows graded": lambda N: (gaussian(N, 1) * 10.0 ** torch.linspace(-15, 15, N, dtype=torch.float64)[:, None], gaussian(N, 2)),
    "huge and tiny elements": lambda N: (
        single(gaussian(N, 1), (0.9, 0.3, 1e15), (0.9, 0.31, 1e-15), (0.1, 0.1, 1e-12), (0.99, 0.0, -1e16)),
        single(gaussian(N, 2), (0.3, 0.2, 1e-16), (0.31, 0.2, 1e16), (0.99, 0.99, 1e12)),
    ),
    "a near-singular factor": lambda N: (drawn("Cholesky, near singular")(N)[0], gaussian(N, 2)),
    "elimination of a matrix": lambda N: (drawn("elimination")(N)[0], gaussian(N, 2)),
    "denormals": lambda N: (denormals(N, 1, 1.0), 1e25 * (1 + gaussian(N, 2).abs())),
    "some denormals": lambda N: (denormals(N, 1, 0.3), 1e15 * (1 + gaussian(N, 2).abs())),
    "the whole range": lambda N: (signed(powers_of_ten(-37, 34, N, N, seed=1), 2), 1 + (gaussian(N, 2) % 1)),
    "the upper end": lambda N: (signed(3.4e38 * (1 - gaussian(N, 1).abs() % 0.5), 2), 1e-6 * gaussian(N, 2)),
    "the lower end": lambda N: (signed(1.2e-38 * (1 + gaussian(N, 1).abs()), 2), 1e33 * (1 + gaussian(N, 2).abs())),
    "both ends": lambda N: (signed(3.4e38 * (1 - gaussian(N, 1).abs() % 0.5), 2), signed(1.2e-38 * (1 + gaussian(N, 2).abs()), 3)),
}
HARD_SIZES = [("cpu", 300), *(pytest.param("cuda", N, marks=needs_cuda) for N in (300, 1000, 2048))]
HARD_FAMILY = [(NN, LOWER), (NT, LOWER), (TN, LOWER), (NN, UPPER), (TN, DENSE)]


def hard_operands(name, N, structure, device):
    X, Y = (T.to(device, torch.float32) for T in HARD[name](N))
    return (X.mT, Y.mT) if structure == UPPER else (X, Y)


@pytest.mark.parametrize(("device", "N"), HARD_SIZES)
@pytest.mark.parametrize(("contraction", "structure"), HARD_FAMILY, ids=["NN-lower", "NT-lower", "TN-lower", "NN-upper", "TN-dense"])
@pytest.mark.parametrize("name", HARD)
def test_float32_accuracy_on_hard_inputs(model, name, contraction, structure, device, N):
    X, Y = hard_operands(name, N, structure, device)
    assert X.isfinite().all() and Y.isfinite().all()
    assert_product(product(X, Y, contraction, structure), X, Y, contraction, structure, f"{name}, N = {N}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("K,M,N", [(4383, 111, 1920), (16384, 64, 256)])
def test_long_sums_of_narrow_matrices(model, K, M, N, device):
    """Of one sign, where rounding errors add up; cuBLAS splits them."""
    X, Y = (torch.rand(K, columns, generator=generator_of(columns)).to(device) for columns in (M, N))
    assert_product(model.transposed_a_matmul(X, Y), X, Y, TN, DENSE, f"{K} x {M}, {K} x {N}")


@needs_cuda
@pytest.mark.parametrize(("every", "seed"), [(64, 101), (1, 83), (64, 2), (16, 52)])
def test_long_sums_that_are_rounded_the_same_way(model, every, seed):
    """Operands with a period of 64 in k, so that all k-blocks have the same sum: without chains 1.9e-6 off. Whatever cuBLAS does."""
    N = 8192
    values = 1 + torch.randint(2**23, (2, 64), generator=helpers.generator(seed)) * 2.0**-23
    a, b = (values.repeat(1, N // 64) * (torch.arange(N) % every == 0)).cuda()
    A, B = a.expand(N, N), b[:, None].expand(N, N)
    bound = measures.allowed(torch.float32, N)[0]
    for structure, X, Y, C in (
        (LOWER, A.tril(), B.tril(), model.tril_matmul(A, B)),
        (UPPER, A.triu(), B.triu(), model.triu_matmul(A, B)),
        (DENSE, A[:300], B[:, :500], model.transposed_a_matmul(A[:300].T, B[:, :500])),
    ):
        exact = X.double() @ Y.double()  # all terms are positive: |X| |Y|, too
        assert_within(C, exact, bound * exact, f"every {every}, seed {seed}, structure {structure}")


# ---- What a CUDA stream may expect. ----------------------------------------------------------------------------------

CUDA_SIZES = [65, 300, 700, 1400, 2048]


def cuda_operands(N, seed=1, dtype=torch.float32, device="cuda"):
    return normal(N, N, seed=seed, dtype=dtype, device=device), normal(N, N, seed=seed + 1, dtype=dtype, device=device)


@needs_cuda
@pytest.mark.skipif(importlib.util.find_spec("torch.cuda.green_contexts") is None, reason="this torch has no green contexts")
@pytest.mark.parametrize("N", [64, 1000, 2048])
def test_a_green_context_stays_current(model, N):
    """Work goes to it and to its stream, on some of the SMs, and it can be left again."""
    A, B = cuda_operands(N)
    expected = model.tril_matmul(A, B)
    torch.cuda.synchronize()
    green = torch.cuda.green_contexts.GreenContext.create(num_sms=32, device_id=0)
    green.set_context()
    C = model.tril_matmul(A * 1, B * 1)  # which this context's stream makes
    green.pop_context()
    torch.cuda.synchronize()
    assert_bitwise(C, expected)


@needs_cuda
@pytest.mark.parametrize("N", CUDA_SIZES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_freed_memory_holds_does_not_matter(model, function, N):
    A, B = cuda_operands(N)
    call = getattr(model, function)
    first = call(A, B)
    for value in (math.nan, math.inf, 1e30, -1.0):
        freed = [torch.full((4 * N * N + 2**22,), value, device="cuda"), torch.full((N, N), value, device="cuda")]
        freed += [torch.full((1000,), value, device="cuda") for _ in range(20)]
        del freed
        assert_bitwise(call(A, B), first, f"{function} after memory full of {value} was freed")


@needs_cuda
@pytest.mark.parametrize("N", CUDA_SIZES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_work_runs_on_the_current_stream(model, function, N):
    A, B = cuda_operands(N)
    call = getattr(model, function)
    expected = call(A, B)
    late_A, late_B = torch.zeros_like(A), torch.zeros_like(B)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # what does not wait for this stream meets zeros
        late_A.copy_(A)
        late_B.copy_(B)
        C = call(late_A, late_B)
        late_A.zero_()
        late_B.zero_()
        kept = C.clone()
    torch.cuda.synchronize()
    assert_bitwise(kept, expected)


@needs_cuda
@pytest.mark.parametrize("N", CUDA_SIZES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_graph_capture_and_replay_with_changed_inputs(model, function, N):
    A, B = cuda_operands(N)
    call = getattr(model, function)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(A, B)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        C = call(A, B)
    inputs = [cuda_operands(N, seed=seed) for seed in (11, 12, 13, 14)]
    inputs[1] = tuple(torch.exp(3 * T) for T in inputs[1])  # takes the other path, where there are two
    inputs[2][0][-1, 0] = 1e-9  # an outlier
    for new_A, new_B in inputs:
        A.copy_(new_A)
        B.copy_(new_B)
        for _ in range(2):
            C.fill_(math.nan)
            graph.replay()
            assert_bitwise(C, call(new_A, new_B))


@needs_cuda
@pytest.mark.parametrize("N", [2048, 2304, 3720])
def test_the_queue_of_half_precision_on_two_streams_and_in_a_graph(model, N):
    """Clusters count tiles in a workspace that nothing clears: replays find what the one before them left."""
    A, B = (normal(N, N, seed=s, dtype=torch.float16, device="cuda") for s in (1, 2))
    X, Y = (normal(N, N, seed=s, dtype=torch.float16, device="cuda") for s in (3, 4))
    expected = model.tril_matmul(A, B), model.tril_matmul(X, Y)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model.tril_matmul(A, B)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        C = model.tril_matmul(A, B)
    for _ in range(20):
        C.fill_(math.nan)
        side.wait_stream(torch.cuda.current_stream())
        graph.replay()
        with torch.cuda.stream(side):
            D = model.tril_matmul(X, Y)
        torch.cuda.synchronize()
        assert_bitwise(C, expected[0])
        assert_bitwise(D, expected[1])
    A[N - 1, N // 2] = math.inf
    graph.replay()
    assert_bitwise(C, model.tril_matmul(A, B))
    assert C[: N - 1].isfinite().all() and not C[N - 1, : N // 2 + 1].isfinite().any()


@needs_two_gpus
@pytest.mark.parametrize("N", [65, 2048])
def test_a_second_device(model, N):
    A, B = cuda_operands(N, device="cuda:1")
    with torch.cuda.device(0):
        C = model.tril_matmul(A, B)
        assert torch.cuda.current_device() == 0
    assert_product(C, A, B, NN, LOWER)
    assert_bitwise(C.cpu(), model.tril_matmul(A.to("cuda:0"), B.to("cuda:0")).cpu())


@needs_cuda
@pytest.mark.alone
@pytest.mark.parametrize("N", CUDA_SIZES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_host_never_waits(model, function, N):
    A, B = cuda_operands(N)
    A.requires_grad_()
    call = getattr(model, function)
    G = torch.ones(N, N, device="cuda")

    def work():
        with torch.no_grad():
            C = call(A, B)
        return C, torch.autograd.grad(call(A, B), A, G)

    work()  # the allocator has what it needs from here on
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(2_000_000_000)  # about a second
        start = time.perf_counter()
        C, _ = work()
        done.record()
        busy = not done.query()
        seconds = time.perf_counter() - start
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert busy, f"the GPU was done when the call returned, after {seconds:.3f} s: the host has waited"
    assert_product(C, A.detach(), B, *FUNCTIONS[function])


@needs_cuda
@pytest.mark.parametrize("function", ["tril_matmul", "triu_matmul"])
def test_memory_beyond_the_result(model, function):
    N = 4096
    A, B = cuda_operands(N)
    A.requires_grad_()
    B.requires_grad_()
    call = getattr(model, function)
    G = torch.ones(N, N, device="cuda")
    allowed = int(1.1 * N * N * 4)

    def beyond_the_results(work):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        results = work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before - len(results) * N * N * 4

    with torch.no_grad():
        extra = beyond_the_results(lambda: [call(A, B)])
    assert extra <= allowed, f"forward: {extra} bytes beyond the result, allowed {allowed}"
    C = call(A, B)
    extra = beyond_the_results(lambda: torch.autograd.grad(C, (A, B), G))
    assert extra <= allowed, f"backward: {extra} bytes beyond the gradients, allowed {allowed}"


# ---- Which kernel computed. ------------------------------------------------------------------------------------------

EXPLAINED = {"lower": LOWER, "upper": UPPER, "transposed_a": DENSE}
PROBLEM_OF = dict(zip(FUNCTIONS, EXPLAINED, strict=True))  # the problem that a public function computes
MASKS = {"lower": ("lower",) * 3, "upper": ("upper",) * 3, "transposed_a": ("dense",) * 3, "lu": ("lower", "upper", "dense")}
MASKS |= {"triangular": ("lower", "dense", "dense"), "gram": ("dense", "dense", "symmetric")}


def plain(path, problem):
    """What explain tells of a kernel that has no fallback."""
    return {"path": path, "fallback": False, "fallback_at": [], "outliers": 0, "masks": MASKS[problem]}


@pytest.fixture
def automatic(model):
    """The model, where it may choose the kernel itself."""
    if model._PATH:
        pytest.skip("TRIL_MATMUL_PATH asks for a kernel")
    return model


def test_explain_on_the_cpu(model):
    A = normal(2048, 2048, seed=1)
    for problem in MASKS:
        assert model.explain(A, A, problem) == plain("cpu", problem)


@needs_hopper
@pytest.mark.parametrize("problem", EXPLAINED)
def test_explain_names_the_hopper_kernel(automatic, problem):
    A, B = cuda_operands(2048)
    for operands in ((A, B), (A.abs() % 1, B.abs() % 1), (A.mT, B), (poison(A, EXPLAINED[problem]), B)):
        told = automatic.explain(*operands, problem)
        assert (told["path"], told["fallback"]) == ("hopper", False), told
        assert isinstance(told["outliers"], int) and 0 <= told["outliers"] < 10000, told


@needs_hopper
@pytest.mark.parametrize("problem", EXPLAINED)
def test_explain_names_the_tf32_kernel(automatic, problem):
    A, B = cuda_operands(600)
    for operands in (
        (A, B),
        (A.mT, B),
        (A, B.mT),
        (torch.exp(3 * A), B),
        (A[None].expand(2, 600, 600), B),
        (A[:90, :90].expand(99, 90, 90),) * 2,
    ):
        assert automatic.explain(*operands, problem) == plain("tf32", problem)
    apart = B.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2]  # no neighbours
    assert automatic.explain(A, apart, problem) == plain("mma", problem)


@needs_hopper
@pytest.mark.parametrize("problem", EXPLAINED)
def test_explain_names_a_fallback(automatic, problem):
    A, B = cuda_operands(2048)
    for operands in ((torch.exp(3 * A), torch.exp(3 * B)), (A, torch.exp(3 * B)), (torch.exp(3 * A), B)):
        told = automatic.explain(*operands, problem)
        assert (told["path"], told["fallback"]) == ("fallback", True), told


@needs_hopper
@pytest.mark.parametrize("problem", EXPLAINED)
def test_explain_tells_of_a_whole_batch(automatic, problem):
    A, B = cuda_operands(2048)
    hard, small = torch.exp(3 * A), A.clone()
    small.view(32, 64, 32, 64)[::16, 3, :, 5] *= 1e-10
    alone = [automatic.explain(X, B, problem)["outliers"] for X in (A, small)]
    assert alone[1] > alone[0]
    told = automatic.explain(torch.stack([small, A, small, A]).view(2, 2, 2048, 2048), B, problem)
    assert told == plain("hopper", problem) | {"outliers": 2 * sum(alone)}
    told = automatic.explain(torch.stack([hard, small, hard, A]), B, problem)  # the last one does not fall back
    assert (told["path"], told["fallback"], told["fallback_at"]) == ("hopper, fallback", True, [0, 2]) and told["outliers"] >= sum(alone), (
        told
    )
    told = automatic.explain(hard.expand(2, 2048, 2048), B, problem)
    assert (told["path"], told["fallback_at"]) == ("fallback", [0, 1]), told


@needs_hopper
@pytest.mark.parametrize(("batch", "N"), [((3,), 1300), ((2, 2), 1153), ((20,), 2048), ((4, 6), 2000)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_batch_in_one_launch(automatic, function, batch, N):
    contraction, structure = FUNCTIONS[function]
    problem = PROBLEM_OF[function]
    A, B = (normal(*batch, N, N, seed=seed, device="cuda") for seed in (1, 2))
    A.view(-1, N, N)[1, N - 5, 3 :: N // 4] *= 1e-12  # outliers in one of them, below the diagonal and above it
    A.view(-1, N, N)[1, 3 :: N // 4, N - 5] *= 1e-12
    told = automatic.explain(A, B, problem)
    assert told["path"] == "hopper" and told["outliers"] > 0, told
    C = getattr(automatic, function)(A, B)
    for at in itertools.product(*(range(size) for size in batch)):
        alone = getattr(automatic, function)(A[at], B[at])
        if at in ((0,) * len(batch), tuple(size - 1 for size in batch)):
            assert_product(C[at], A[at], B[at], contraction, structure)
        torch.testing.assert_close(C[at], alone, rtol=0, atol=1e-5 * N**0.5)  # its splits may be other ones
    assert_bitwise(getattr(automatic, function)(A, B), C)


@needs_hopper
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_batch_of_which_some_fall_back(automatic, function):
    contraction, structure = FUNCTIONS[function]
    problem = PROBLEM_OF[function]
    A, B = (normal(4, 1300, 1300, seed=seed, device="cuda") for seed in (1, 2))
    A[1], B[3] = torch.exp(3 * A[1]), torch.exp(3 * B[3])
    assert automatic.explain(A, B, problem)["fallback_at"] == [1, 3]
    assert_product(getattr(automatic, function)(A, B), A, B, contraction, structure)
    common = torch.exp(3 * B[0])
    assert automatic.explain(A, common, problem)["fallback_at"] == [0, 1, 2, 3]
    assert_product(getattr(automatic, function)(A, common), A, common.expand_as(A), contraction, structure)


@pytest.mark.parametrize(
    ("controls", "told"),
    [
        ([[0, 3]], ("hopper", False, [], 3)),
        ([[1, 9]], ("fallback", True, [0], 9)),
        ([[0, 3], [1, 9], [1, 0], [0, 2]], ("hopper, fallback", True, [1, 2], 14)),
        ([[1, 1], [1, 2]], ("fallback", True, [0, 1], 3)),
    ],
)
def test_what_explain_makes_of_the_controls_of_a_batch(model, monkeypatch, controls, told):
    on_gpu = types.SimpleNamespace(is_cuda=True)
    workspace = torch.tensor(controls)
    extension = types.SimpleNamespace(
        product=lambda *_: (torch.empty(len(controls), 1, 1), "hopper", workspace),
        controls=lambda workspace, batches: workspace.reshape(batches, 2),
    )
    monkeypatch.setattr(model, "_validate_and_broadcast", lambda *_: (on_gpu, on_gpu))
    monkeypatch.setattr(model, "_EXTENSION", extension)
    told = dict(zip(("path", "fallback", "fallback_at", "outliers"), told, strict=True))
    assert model.explain(None, None) == told | {"masks": MASKS["lower"]}


@needs_hopper
@pytest.mark.parametrize("mantissa", [1.0, 1 + 2**-10, 1 + 2**-20], ids=["one bit", "eleven bits", "twenty-one bits"])
@pytest.mark.parametrize("which", ["A", "B"])
def test_small_elements_beside_large_ones(automatic, which, mantissa):
    """A pair of float16 ends somewhere: below, a block is wide, and then an element an outlier. Here nothing hides what would be lost."""
    N = 1300
    S, identity = 0.5 + 0.5 * torch.rand(N, N, device="cuda"), torch.eye(N, device="cuda")
    for e in range(1, 61):
        S[1200 - 7 * e, 20 * e % 64] = mantissa * 2.0**-e
    S = S.tril_()
    A, B = (S, identity) if which == "A" else (identity, S)
    told = automatic.explain(A, B)
    assert told["path"] == "hopper" and 0 < told["outliers"] < 60, told
    C = automatic.tril_matmul(A, B)
    relative = ((C.double() - S.double()).abs() / S.double().abs().clamp_min(1e-300)).max().item()
    assert relative <= 1e-6, relative


@needs_hopper
@pytest.mark.parametrize("problem", EXPLAINED)
@pytest.mark.parametrize(("every", "fallback"), [(16, False), (1, True)])
def test_many_outliers_make_a_fallback(model, problem, every, fallback):
    """Elements that a pair of float16 cannot hold are added one by one, unless there are too many for that."""
    A, B = cuda_operands(2048)
    for T in (A, B):
        T.view(32, 64, 32, 64)[::every, 3, :, 5] *= 1e-10  # one in each block of 64 x 64
        T.view(32, 64, 32, 64)[::every, 60, :, 2] *= 1e-10
    function, family = dict(zip(EXPLAINED, FUNCTIONS.items(), strict=True))[problem]
    assert_product(getattr(model, function)(A, B), A, B, *family, function)
    if not model._PATH:
        told = model.explain(A, B, problem)
        assert told["fallback"] == fallback, told
        assert told["outliers"] > 50, told


@needs_cuda
@pytest.mark.parametrize("problem", EXPLAINED)
def test_explain_names_the_kernel(model, problem):
    small = helpers.cuda_path(model, hopper="tf32")
    assert model.explain(*cuda_operands(60), problem) == plain(small, problem)
    for dtype in DTYPES[1:]:
        path = helpers.cuda_path(model, hopper="half" if dtype in HALF_DTYPES else "mma")
        assert model.explain(*cuda_operands(2048, dtype=dtype), problem) == plain(path, problem)


TF32_SETTINGS = {
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
    "allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "fp32_precision": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}


@pytest.fixture
def restored_precision():
    """Gives torch's settings back, the older and the newer one."""
    before = torch.backends.cuda.matmul.fp32_precision, torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before[1])
    torch.backends.cuda.matmul.fp32_precision = before[0]


@pytest.mark.parametrize("N", [3, 300])
def test_float16_on_a_cpu_keeps_its_bits_where_float32_may_lose_some(model, restored_precision, N):
    torch.set_float32_matmul_precision("medium")  # to bfloat16, on a CPU that has such products
    A, B = 257 * torch.eye(N, dtype=torch.float16), torch.eye(N, dtype=torch.float16)
    assert torch.equal(model.tril_matmul(A, B), A)
    one = torch.eye(N, dtype=torch.float16).requires_grad_()
    (gradient,) = torch.autograd.grad(model.triangular_inverse(one), one, A)
    assert torch.equal(gradient, -A)


def test_what_a_batch_repeats_is_copied_once(model):
    """On a CPU, by masks and for a wider dtype; the result repeats it as well."""
    one, copied = torch.ones(2, 1, 3, 3), []
    assert model._once(lambda T: copied.append(T.shape) or T.clone(), one.expand(2, 5, 3, 3)).stride() == (9, 0, 3, 1)
    assert copied == [one.shape]


def worst_error(C, X, Y, contraction, structure):
    exact, magnitude = truth(X, Y, contraction, structure)
    return ((C.double() - exact).abs() / magnitude.clamp(min=1e-300)).max().item()


@needs_cuda
@pytest.mark.parametrize("setting", TF32_SETTINGS)
def test_tf32_where_torch_allows_it(model, restored_precision, setting):
    """Each operand is rounded to 11 bits at most. The fp16x3 kernel takes the time of one product then; the others stay what they are."""
    A, B = cuda_operands(1500)
    TF32_SETTINGS[setting]()
    hopper = helpers.HAS_HOPPER and not model._PATH
    for function, family in FUNCTIONS.items():
        error = worst_error(getattr(model, function)(A, B), A, B, *family)
        assert error < 1.01 * 2.0**-10, (function, error)
        assert not hopper or error > 2.0**-16, (function, error)


@needs_hopper
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("where", ["everywhere", "half way", "at the far ends", "zeros", "outliers"])
def test_tf32_of_blocks_with_many_scales(automatic, restored_precision, function, where):
    """Blocks with scales of their own, in each way that the sums of a tile can meet them."""
    N = 1500
    A, B = (normal(2, N, N, seed=seed, device="cuda") for seed in (1, 2))
    block = torch.arange(N, device="cuda") // 64
    exponents = {
        "everywhere": block * 7 % 60 - 30,
        "half way": block // 12 * 20,
        "at the far ends": (block % 2) * 100 - 50,
        "zeros": 0 * block,
        "outliers": 0 * block,
    }
    for operand in (A, B):
        operand *= torch.exp2(exponents[where].float())[:, None]  # in B, and in one problem in A, that is along k
    if where == "zeros":
        A[..., 300:700, :], B[..., :, 900:1000], A[1] = 0.0, 0.0, 0.0
    if where == "outliers":  # in each a line that has no other element
        A[..., 705, :], A[..., :, 705], B[..., 809, :], B[..., :, 809] = 0.0, 0.0, 0.0, 0.0
        A[..., 705, 705] = B[..., 809, 809] = 1e-9
    torch.set_float32_matmul_precision("high")
    explained = automatic.explain(A, B, PROBLEM_OF[function])
    assert explained["path"] == "hopper" and (where != "outliers" or explained["outliers"] >= 4), explained
    error = worst_error(getattr(automatic, function)(A, B), A, B, *FUNCTIONS[function])
    assert error < 1.01 * 2.0**-10, error


def one_row_by_one_column(N, x, y):
    """A and B of which the last row and the first column have something alone."""
    A, B = (torch.zeros(N, N, device="cuda") for _ in "AB")
    A[N - 1, : len(x)], B[: len(y), 0] = x.cuda(), y.cuda()
    return A, B


@needs_hopper
@pytest.mark.parametrize("first", [1.0, 1 + 2.0**-11 - 3 * 2.0**-23])
def test_terms_that_tensor_cores_cut_off(automatic, first):
    """Behind one large term each of the others in its k-block loses what lies below its 25th bit: docs/kernel.md has the bound."""
    x, y = torch.full((64,), 2.0**-11 * (1 - 2.0**-11)), torch.full((64,), 2.0**-12)
    x[0] = y[0] = first
    for N, bound in ((1536, 3.2e-6), (1024, 2.2e-6)):  # the Hopper and the split-tf32 kernel
        A, B = one_row_by_one_column(N, x, y)
        assert worst_error(automatic.tril_matmul(A, B), A, B, NN, LOWER) < bound


@needs_hopper
def test_terms_of_wide_blocks_are_not_rounded_away(automatic):
    """Of each k-block hi lo and lo hi were once less than half a last bit of a total beside which both count."""
    N = 8192
    x, y = (scale * (1 + 2.0**-11 - 2.0**-22) * (torch.arange(N) % 64 == 0) for scale in (2.0**-6, 2.0**-7))
    x[N // 2] = y[N // 2] = 1
    A, B = one_row_by_one_column(N, x, y)
    A[N - 2, : N - 1] = 2.0**-27 * 4 / 3  # makes every block wide
    C = automatic.tril_matmul(A, B)
    exact = (A[N - 1].double() * B[:, 0].double()).sum().item()
    assert abs(C[N - 1, 0].item() - exact) < 1e-6 * exact


@needs_cuda
@pytest.mark.parametrize("N", [256, 1024])
def test_the_exact_path_does_not_lose_small_terms(model, N):
    """An element whose tile is summed again, since another one is beyond the first scale, has no long sum of float32."""
    x = torch.zeros(128)
    x[0], x[64], x[65:] = -(2.0**-17), 1, 2.0**-24 * (1 - 2.0**-10)
    A, B = one_row_by_one_column(N, x, torch.ones(N))
    for value in (2.0**104, math.inf):
        A[N - 2, 0] = value
        error = abs(model.tril_matmul(A, B)[N - 1, 0].item() - x.double().sum().item())
        assert error < 1.5e-6, (value, error)


@needs_hopper
@pytest.mark.parametrize("precision", ["high", "highest"])
def test_short_work_tiles_and_products_left_out(automatic, restored_precision, precision):
    """The fp16x3 kernel's producers take many work tiles in a row: of one k-block each, or of products that are left to the fallback."""
    torch.set_float32_matmul_precision(precision)
    limit = 1.01 * 2.0**-10 if precision == "high" else 2.0**-18
    X, Y = (normal(64, 3840, seed=seed, device="cuda") for seed in (1, 2))
    assert automatic.explain(X, Y, "transposed_a")["path"] == "hopper"
    assert worst_error(automatic.transposed_a_matmul(X, Y), X, Y, TN, DENSE) < limit
    N, left_out = 1152, [0, *range(2, 20), 23]
    A, B = (normal(24, N, N, seed=seed, device="cuda") for seed in (3, 4))
    A[left_out, N - 1, 0] = math.nan  # of C it reaches the same element alone
    assert automatic.explain(A, B)["fallback_at"] == left_out
    C = automatic.tril_matmul(A, B)
    assert C[:, N - 1, 0].isnan().nonzero().flatten().tolist() == left_out
    A[left_out, N - 1, 0], C[left_out, N - 1, 0] = 0.0, (A[left_out, N - 1, 1:, None] * B[left_out, 1:, :1]).sum((-2, -1))
    assert worst_error(C, A, B, NN, LOWER) < limit


# Prints "same bits" if all calls had them. What packing reports last, in the last block, it reports while tiles are taken.
REPORTED_LATE = """
import itertools, math, sys
import torch
from model_new import gram, tril_matmul, triangular_matmul

way = sys.argv[1]
torch.manual_seed(0)
torch.set_float32_matmul_precision("high" if way == "tf32" else "highest")


def results(A, B):
    if way == "gradients":
        X, Y = (torch.randn_like(A, requires_grad=True) for _ in "XY")
        return torch.autograd.grad(tril_matmul(X, Y), (X, Y), B)
    return ((gram if way == "gram" else triangular_matmul if way == "dense" else tril_matmul)(*((B,) if way == "gram" else (A, B))),)


def bits(C):
    return [V.view(torch.int32).sum(dtype=torch.int64) for V in C]


for batch, N in ((2, 1152), (3, 1152), (2, 1536)):
    A, B = (torch.randn(batch, N, N, device="cuda") for _ in "AB")
    last = slice(-64, None)
    if way == "outliers":  # more than a block may have
        B[-1, last, last] *= 10.0 ** torch.randint(-9, 9, (64, 64), device="cuda")
    else:
        B[-1, -1, -1] = math.nan
    for _ in range(60):
        found = []
        for _ in range(20):
            torch.manual_seed(1)
            found.append(bits(results(A, B)))
        assert all(a.equal(b) for each in found for a, b in zip(found[0], each, strict=True))
print("same bits")
"""


@needs_hopper
@pytest.mark.parametrize("way", ["nan", "outliers", "tf32", "dense", "gram", "gradients"])
def test_one_product_of_a_batch_that_needs_the_fallback(way):
    """A split once waited for ever for one that had been left out, since packing had reported between the two. In a process of its own,
    which can be ended."""
    done = subprocess.run([sys.executable, "-c", REPORTED_LATE, way], capture_output=True, text=True, cwd=helpers.ROOT, timeout=300)
    assert done.stdout.endswith("same bits\n"), done.stderr


@needs_cuda
@pytest.mark.parametrize("precisions", [("high", "highest"), ("highest", "high"), ("high", "high")])
def test_gradients_go_by_the_setting_when_they_are_computed(model, restored_precision, precisions):
    """Operands that a product in TF32 keeps for the gradients, without lo, serve no others."""
    A, B = (T.requires_grad_() for T in cuda_operands(1500))
    G = normal(1500, 1500, seed=77, device="cuda")
    torch.set_float32_matmul_precision(precisions[0])
    C = model.tril_matmul(A, B)
    torch.set_float32_matmul_precision(precisions[1])
    dA, dB = torch.autograd.grad(C, (A, B), G)
    limits = [1.01 * 2.0**-10 if precision == "high" else 2.0**-18 for precision in precisions]
    A, B = A.detach(), B.detach()
    assert worst_error(C.detach(), A, B, NN, LOWER) < limits[0]
    assert worst_error(dA, G, B, NT, LOWER) < limits[1]
    assert worst_error(dB, A, G, TN, LOWER) < limits[1]


def executed(path):
    """The file, executed with this TRIL_MATMUL_PATH; afterwards torch's operator is the file's as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIL_MATMUL_PATH", path)
        room = helpers.execute()
    yield room
    helpers.execute()


@pytest.fixture(scope="module")
def exact_room(model):
    yield from executed("exact")


@pytest.fixture(scope="module")
def mma_room(model):
    yield from executed("mma")


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exact_kernel_on_request(exact_room, dtype):
    for N, layout, batch in ((1, "contiguous", ()), (70, "steps", (3,)), (257, "transposed", ()), (2048, "contiguous", ())):
        A, B = (normal(*batch, N, N, seed=seed, dtype=dtype, device="cuda") for seed in (N, N + 1))
        for problem, (function, (contraction, structure)) in zip(EXPLAINED, FUNCTIONS.items(), strict=True):
            X, Y = (laid_out(T, layout, structure) for T in (A, B))
            assert exact_room["explain"](X, Y, problem) == plain("exact", problem)
            assert_product(exact_room[function](X, Y), X, Y, contraction, structure, f"{function}, N = {N}, {layout}")


@needs_cuda
@pytest.mark.skipif(helpers.HAS_CUDA and torch.cuda.get_device_capability() < (8, 0), reason="the mma kernel needs compute capability 8.0")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_mma_kernel_on_request(mma_room, function, dtype):
    contraction, structure = FUNCTIONS[function]
    problem = PROBLEM_OF[function]
    for N, layout, batch in (
        (1, "contiguous", ()),
        (70, "slice", ()),
        (257, "transposed", (3,)),
        (1000, "contiguous", ()),
        (2056, "steps", ()),
    ):
        A, B = (normal(*batch, N, N, seed=seed, dtype=dtype, device="cuda").requires_grad_() for seed in (N, N + 1))
        X, Y = (laid_out(T.detach(), layout, structure).requires_grad_() for T in (A, B))
        assert mma_room["explain"](X, Y, problem)["path"] == "mma"
        C = mma_room[function](X, Y)
        assert_product(C, X, Y, contraction, structure, f"N = {N}, {layout}")
        G = normal(*batch, N, N, seed=N + 2, dtype=dtype, device="cuda")
        dX, dY = torch.autograd.grad(C, (X, Y), G)
        by_x, by_y = ((NT, (G, Y)), (TN, (X, G))) if contraction == NN else ((NT, (Y, G)), (NN, (X, G)))
        assert_product(dX.contiguous(), *by_x[1], by_x[0], structure, f"dA, N = {N}, {layout}")
        assert_product(dY.contiguous(), *by_y[1], by_y[0], structure, f"dB, N = {N}, {layout}")


@needs_cuda
@pytest.mark.skipif(helpers.HAS_CUDA and torch.cuda.get_device_capability() < (8, 0), reason="the mma kernel needs compute capability 8.0")
def test_the_mma_kernel_gives_the_same_bits_every_time(mma_room):
    for N in (300, 1000, 2500):
        A, B = cuda_operands(N)
        first = mma_room["tril_matmul"](A, B)
        for _ in range(100):
            assert_bitwise(mma_room["tril_matmul"](A, B), first)
