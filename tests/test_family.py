"""triangular_matmul, gram, lu_matmul and triangular_inverse, and the operator under other masks than theirs: values, what is not read,
layouts, batches, sizes, bits, NaN and Inf, gradients, what torch builds on an operator, and errors."""

import functools
import importlib.util
import itertools
import math
from typing import NamedTuple

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from helpers import (
    DEVICES,
    DTYPES,
    FULL,
    LAYOUTS,
    MASKED,
    NN,
    NT,
    SYMMETRIC,
    TN,
    TRIL,
    TRIU,
    assert_bitwise,
    assert_inverse,
    assert_product,
    assert_same_specials,
    assert_within,
    bits,
    bound_for,
    by,
    classes,
    constant,
    cuts,
    every_mask,
    expected_with_specials,
    masked,
    masks,
    module,
    needs_cuda,
    needs_hopper,
    normal,
    plain_operands,
    poison,
    product,
    read_part,
    sizes_for,
    truth,
)
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

# ---- The calls. ------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One way to call a public function. Its arguments are an A that has a triangle and an X, in this order; or X alone; or L and U."""

    function: str
    options: dict
    masks: tuple  # of the arguments
    member: tuple  # contraction and structure
    swapped: bool = False  # X comes first in the product

    def shapes(self, N, R):
        """Of its arguments."""
        if self.function == "gram":
            M, K = (R, N) if self.options["transpose"] else (N, R)
            return [(N, N) if self.masks[0] else (M, K)]
        if self.function == "lu_matmul":
            return [(N, N)] * 2
        return [(N, N), (R, N) if self.swapped else (N, R)]

    def arguments(self, N, R, batches=((), ()), seed=1, dtype=torch.float32, device="cpu"):
        """Normal values; NaN in what is not read."""
        drawn = enumerate(zip(self.shapes(N, R), self.masks, batches, strict=False))
        given = [poison(normal(*batch, *shape, seed=seed + s, dtype=dtype, device=device), mask) for s, (shape, mask, batch) in drawn]
        if self.unit:
            given[0].diagonal(dim1=-2, dim2=-1).fill_(math.nan)
        return given

    @property
    def unit(self):
        return self.options.get("unitriangular", False)

    def of(self, model):
        return functools.partial(getattr(model, self.function), **self.options)

    def operands(self, *given):
        """The product's X and Y."""
        if self.function == "gram":
            return given * 2
        first, second = given
        if self.unit:
            first = first.diagonal_scatter(torch.ones_like(first.diagonal(dim1=-2, dim2=-1)), dim1=-2, dim2=-1)
        return (second, first) if self.swapped else (first, second)

    def reference(self, *given):
        """By torch's own operators."""
        contraction, structure = self.member
        return torch.matmul(*plain_operands(*self.operands(*given), contraction, structure))


def calls():
    found = {}
    for upper, left, unit in itertools.product((False, True), (True, False), (False, True)):
        mask = TRIU if upper else TRIL
        member = NN, masked(mask, FULL, FULL) if left else masked(FULL, mask, FULL)
        options = {"upper": upper, "left": left, "unitriangular": unit}
        triangle = ("1" if unit else "") + ("U" if upper else "L")
        found[f"{triangle} X" if left else f"X {triangle}"] = Call("triangular_matmul", options, (mask, FULL), member, not left)
    for transpose, (structure, mask) in itertools.product((False, True), (("dense", FULL), ("lower", TRIL), ("upper", TRIU))):
        X, member = " LU"[mask].strip() or "X", (TN if transpose else NT, masked(mask, mask, SYMMETRIC))
        options = {"transpose": transpose, "structure": structure}
        found[f"{X}^T {X}" if transpose else f"{X} {X}^T"] = Call("gram", options, (mask,), member)
    return found | {"L U": Call("lu_matmul", {}, (TRIL, TRIU), (NN, masked(TRIL, TRIU, FULL)))}


CALLS = calls()
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
FEW = {name: CALLS[name] for name in ("L X", "X 1U", "X X^T", "L^T L", "L U")}
some_calls = pytest.mark.parametrize("call", FEW.values(), ids=FEW)
every_device = pytest.mark.parametrize("device", DEVICES)


def assert_call(model, call, given, what=""):
    before = [bits(T).clone() for T in given]
    C = call.of(model)(*given)
    assert_product(C, *(T.detach() for T in call.operands(*given)), *call.member, what or "C")
    assert all(torch.equal(bits(T), bit) for T, bit in zip(given, before, strict=True)), "an argument was modified"
    return C


# ---- Values. ---------------------------------------------------------------------------------------------------------


@every_device
@pytest.mark.parametrize("dtype", DTYPES)
@every_call
def test_any_size(model, call, dtype, device):
    sizes = [(1, 1), (2, 70), (65, 1), (130, 64), (200, 333), (300, 129)]
    for N, R in sizes if device == "cuda" or dtype == torch.float32 else sizes[:4]:
        assert_call(model, call, call.arguments(N, R, dtype=dtype, device=device), f"{dtype}, {N}, {R}")


@every_device
@pytest.mark.parametrize("left", [True, False], ids=["A X", "X A"])
@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
def test_other_diagonals(model, upper, left, device):
    """Triangles that end, or begin, above or below the main diagonal, beyond the matrix, too: values, what is not read, gradients."""
    triangle = torch.triu if upper else torch.tril

    def call_of(diagonal):
        return functools.partial(model.triangular_matmul, upper=upper, left=left, diagonal=diagonal)

    for N, diagonal in itertools.product((66, 130), (-131, -130, -65, -1, 1, 2, 64, 129, 140)):
        for dtype in DTYPES if device == "cuda" or diagonal == 2 else (torch.float32,):
            A, X = (normal(*shape, seed=s, dtype=dtype, device=device) for s, shape in enumerate(((N, N), (N, 33) if left else (33, N))))
            poisoned = A.masked_fill(triangle(torch.ones_like(A), diagonal) == 0, math.nan)
            operands = (triangle(A, diagonal), X) if left else (X, triangle(A, diagonal))
            assert_product(call_of(diagonal)(poisoned, X), *operands, NN, masked(FULL, FULL, FULL), f"{dtype}, {N}, {diagonal}")
    for N, diagonal, batches in itertools.product((0, 1, 4), (-4, -1, 1, 9), (((), ()), ((2, 1), (3,)), ((), (3,)))):
        given = [normal(*batch, N, N, seed=s, dtype=torch.float64, device=device).requires_grad_() for s, batch in enumerate(batches)]
        read = triangle(given[0], diagonal)
        C, exact = call_of(diagonal)(*given), read @ given[1] if left else given[1] @ read
        torch.testing.assert_close(C, exact)
        G = normal(*exact.shape, seed=5, dtype=torch.float64, device=device)
        torch.testing.assert_close(torch.autograd.grad(C, given, G), torch.autograd.grad(exact, given, G))
    assert gradgradcheck(call_of(1), given[:1] + [given[1][0]])


@every_device
@pytest.mark.parametrize("dtype", DTYPES)
@every_mask
def test_any_size_of_every_mask(model, contraction, structure, dtype, device):
    """The operator itself, among whose masks are those of the gradients."""
    x, y, c = masks(structure)
    for N, R in ((0, 3), (3, 0), (1, 1), (65, 7), (190, 130)):
        M, cols, K = sizes_for(structure, N, R)
        X = poison(normal(*((K, M) if contraction == TN else (M, K)), seed=1, dtype=dtype, device=device), x)
        Y = X if c == SYMMETRIC else poison(normal(*((cols, K) if contraction == NT else (K, cols)), seed=2, dtype=dtype, device=device), y)
        assert_product(product(X, Y, contraction, structure), X, Y, contraction, structure, f"{N}, {R}")


@every_device
@every_call
def test_nothing(model, call, device):
    for N, R in ((0, 0), (0, 5), (5, 0)):
        given = [T.requires_grad_() for T in call.arguments(N, R, ((2,), ()), device=device)]
        C = assert_call(model, call, given)
        gradients = torch.autograd.grad(C.sum(), given)
        assert [g.shape for g in gradients] == [T.shape for T in given]


@every_device
@pytest.mark.parametrize("batches", [((2,), (2,)), ((), (3,)), ((2, 1), (3,)), ((4,), ()), ((0,), (1,))], ids=str)
@every_call
def test_batches(model, call, batches, device):
    for dtype in (torch.float32, torch.bfloat16):
        assert_call(model, call, call.arguments(66, 33, batches, dtype=dtype, device=device))


@every_device
@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize("ones", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.function == "triangular_matmul"])
def test_one_triangle_for_a_batch(model, name, ones, R, device):
    """Its gradient is one product, not one for each of the batch; and its diagonal is replaced once."""
    call = CALLS[name]
    given = [T.requires_grad_() for T in call.arguments(70, R, (ones, (3, 2)), dtype=torch.float64, device=device)]
    C = assert_call(model, call, given)
    assert C.is_contiguous()
    G = normal(*C.shape, seed=5, dtype=torch.float64, device=device)
    torch.testing.assert_close(torch.autograd.grad(C, given, G), torch.autograd.grad(call.reference(*given), given, G))
    largest = []

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), named=None):
            result = operation(*arguments, **(named or {}))
            largest.append(result.untyped_storage().nbytes() if isinstance(result, torch.Tensor) else 0)
            return result

    with Largest():
        call.of(model)(*given).backward(G)
        call.of(model)(*(T.detach() for T in given))
    assert max(largest) <= 8 * 70 * 70


@every_device
@pytest.mark.parametrize("batch", [(3, 2), (0,)], ids=str)
@pytest.mark.parametrize("R", [0, 1, 3])
def test_one_dense_matrix_for_a_batch_of_narrow_ones(model, batch, R, device):
    """As test_one_triangle_for_a_batch."""
    A, B = (normal(*shape, seed=1, dtype=torch.float64, device=device).requires_grad_() for shape in ((70, 50), (*batch, 70, R)))
    C, exact = model.transposed_a_matmul(A, B), A.mT @ B
    assert C.is_contiguous()
    torch.testing.assert_close(C, exact)
    G, shapes = normal(*C.shape, seed=5, dtype=torch.float64, device=device), []

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), named=None):
            result = operation(*arguments, **(named or {}))
            shapes.append(result.shape)
            return result

    with Shapes():
        mine = torch.autograd.grad(C, (A, B), G)
    torch.testing.assert_close(mine, torch.autograd.grad(exact, (A, B), G))
    assert (*batch, 70, 50) not in shapes


@every_device
@pytest.mark.parametrize("layout", LAYOUTS)
@every_call
def test_layouts(model, call, layout, device):
    for dtype, batch in ((torch.float32, (2,)), (torch.float16, ()))[: 2 if device == "cuda" else 1]:
        given = call.arguments(130 if device == "cuda" else 34, 67, (batch, batch), dtype=dtype, device=device)
        if layout in ("equal rows", "equal columns", "one value"):  # whose elements are elements of what is not read, too
            given = [T.nan_to_num(0.5) for T in given]
        for at in range(len(given)):
            assert_call(model, call, [LAYOUTS[layout](T) if at in (i, 1) else T for i, T in enumerate(given)])


@every_device
@every_call
def test_what_is_not_read_changes_no_bit(model, call, device):
    for N in (130, 700) if device == "cuda" else (130,):
        given = call.arguments(N, 70, device=device)
        expected = call.of(model)(*given)
        for value in (math.inf, 3e38, 0.0):
            assert_bitwise(call.of(model)(*(T.nan_to_num(value) for T in given)), expected)


@every_device
@every_mask
def test_one_memory_for_both_operands(model, contraction, structure, device):
    """Each has its own part of it, whatever the other one has."""
    for dtype, N in ((torch.float32, 130), (torch.float32, 1100), (torch.bfloat16, 1100))[: 3 if device == "cuda" else 1]:
        X = normal(N, N, seed=1, dtype=dtype, device=device)
        for Y in (X,) if masks(structure)[2] == SYMMETRIC else (X, X.mT):
            with by(model, "hopper" if N > 1000 else "auto"):
                C = product(X, Y, contraction, structure)
            assert_product(C, X, Y, contraction, structure, f"{dtype}, {N}")


@every_device
def test_a_subclass_is_asked(model, device):
    class Named(torch.Tensor):
        """Has what torch gives to any subclass: a __torch_function__, by which results are of it."""

    A, B = (normal(70, 70, seed=seed, device=device) for seed in (1, 2))
    assert type(model.tril_matmul(A.as_subclass(Named), B)) is type(model.gram(A.as_subclass(Named))) is Named
    assert_bitwise(model.tril_matmul(A, B.as_subclass(Named)).as_subclass(torch.Tensor), model.tril_matmul(A, B))


# ---- Every class of sizes, on a GPU. ---------------------------------------------------------------------------------


def class_sizes(dtype):
    """(kernel, N, R): every class of sizes of the kernels that a dtype has, beside a side that is longer and shorter by turns."""
    cut = cuts()
    names = {
        torch.float32: (("tf32", 0), ("tf32", 8), ("hopper", 0), ("hopper", 1), ("hopper", 5)),
        torch.float64: (("mma, float64", 0), ("mma, float64", 5)),
    }.get(dtype, (("mma, 16 bits", 0), ("half, small tiles", 4), ("half, large tiles", 5), ("half, large tiles", 11)))
    for name, base in names:
        rest = classes(cut[name])
        turned = rest[len(rest) // 3 :] + rest[: len(rest) // 3]
        for number, (n, r) in enumerate(zip(rest, turned, strict=True)):
            yield name, base * cut[name].edge + n, (r, 2 * cut[name].edge + r, (base + 3) * cut[name].edge + r)[number % 3]


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES)
@every_mask
def test_every_class_of_sizes(model, contraction, structure, dtype):
    """Right, and the same bits three times, by rows and by columns."""
    x, y, c = masks(structure)
    for number, (name, N, R) in enumerate(class_sizes(dtype)):
        M, cols, K = sizes_for(structure, N, R)
        shapes = (K, M) if contraction == TN else (M, K), (cols, K) if contraction == NT else (K, cols)
        random = torch.Generator("cuda").manual_seed(N)
        X, Y = (torch.rand(*shape, generator=random, device="cuda").sub_(0.5).to(dtype) for shape in shapes)
        X, Y = poison(X, x), poison(Y, y)
        X, Y = (T.mT.contiguous().mT if number >> at & 1 else T for at, T in enumerate((X, Y)))
        Y = X if c == SYMMETRIC else Y
        with by(model, "hopper" if name.startswith(("hopper", "half")) else "auto"):
            results = [product(X, Y, contraction, structure) for _ in range(3)]
        assert_product(results[0], X, Y, contraction, structure, f"{dtype}, {N}, {R}")
        for again in results[1:]:
            assert_bitwise(again, results[0], f"{dtype}, {N}, {R}, again")


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("c", [SYMMETRIC, TRIL, TRIU], ids=["symmetric", "tril", "triu"])
@pytest.mark.parametrize("contraction", [NT, TN], ids=["NT", "TN"])
def test_tiles_that_are_left_when_all_clusters_have_had_equally_many(model, contraction, c, dtype):
    """A few large tiles: float32's are cut along k, those of half precision are computed apart."""
    sms, K = torch.cuda.get_device_properties("cuda").multi_processor_count, 4096
    rows = next(r for r in range(1, 99) if math.comb(r + 1, 2) > sms // 2 and 0 < math.comb(r + 1, 2) % (sms // 2) <= sms // 12)
    M = rows * constant("_CUDA_SCHEDULE", "kTileEdge")
    X, Y = (normal(*((K, M) if contraction == TN else (M, K)), seed=s, dtype=dtype, device="cuda") for s in (1, 2))
    Y, structure = X if c == SYMMETRIC else Y, masked(FULL, FULL, c)
    results = [product(X, Y, contraction, structure) for _ in range(3)]
    assert_product(results[0], X, Y, contraction, structure)
    for again in results[1:]:
        assert_bitwise(again, results[0])


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("contraction", [NT, TN], ids=["NT", "TN"])
def test_what_half_precision_stores_twice(model, contraction, dtype):
    """Symmetric results by every plan: a tile for each SM or several, in halves, shared by CTAs, large and small; by rows and by columns;
    and poisoned memory comes back as the result."""
    edge = constant("_CUDA_SCHEDULE", "kTileEdge") // 2  # of the small tiles
    sizes = [(16 * edge - n, 200 - n % 7) for n in (0, 1, 8, 64, 65, 127)]  # a few more small ones than SMs: diagonal pairs
    sizes += [(9 * edge, 1200), (10 * edge + 1, 130), (6 * edge, 4100), (20 * edge + 8, 2000), (28 * edge, 3584), (32 * edge, 520)]
    sizes += [(18 * edge - n, 72) for n in (0, 65)]  # several an SM, of which the cheap ones are last
    batches = [(16 * edge, 2000, 2), (11 * edge + 65, 136, 5), (2 * edge + 1, 64, 130), (6 * edge, 300, 7), (2 * edge - 5, 264, 50)]
    for number, (M, K, *batch) in enumerate(sizes + batches):
        X = normal(*batch, *((K, M) if contraction == TN else (M, K)), seed=number, dtype=dtype, device="cuda")
        X = X.mT.contiguous().mT if number % 2 else X
        torch.full((*batch, M, M), math.nan, dtype=dtype, device="cuda")  # where the allocator may put the result
        results = [product(X, X, contraction, masked(FULL, FULL, SYMMETRIC)) for _ in range(3)]
        assert_product(results[0], X, X, contraction, masked(FULL, FULL, SYMMETRIC), f"{M} x {K}, {batch}")
        for again in results[1:]:
            assert_bitwise(again, results[0], f"{M} x {K}, {batch}, again")


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("structure", ["lower", "upper"])
@pytest.mark.parametrize("transpose", [False, True], ids=["", "transposed"])
def test_what_stands_opposite_meets_the_same_infinity(model, transpose, structure, dtype):
    """Where all of a symmetric product is computed, by halves of tiles as well."""
    for N in (384, 640, 1000, 1024, 2048):
        X = normal(N, N, seed=N, dtype=dtype, device="cuda")
        for far in (34, N // 4):
            X[tuple(sorted((N - far, N // 2 + 8), reverse=structure == "lower"))] = math.inf
            C = model.gram(X, transpose=transpose, structure=structure)
            assert_bitwise(C, C.mT.contiguous(), f"{N}, {far}")


@pytest.mark.parametrize("N", [0, 1, 127, 128, 129, 300])
def test_what_stands_opposite_comes_from_below_the_diagonal(model, N):
    """Of any matrix: X X^T has the same bits there already, on some CPUs."""
    T = normal(2, N, N, seed=N)
    expected = T.tril() + T.tril(-1).mT
    assert model._mirrored(T, out=T) is T
    assert_bitwise(T, expected)


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES)
@every_call
def test_batches_of_small_and_large_products(model, call, dtype):
    tile = constant("_CUDA_SCHEDULE", "kTileEdge")
    for batch, N, R in ((1000, 64, 64), (40, 2 * tile + 1, tile), (5, 4 * tile + 65, tile // 2)):
        given = call.arguments(N, R, ((batch,), (batch,)), dtype=dtype, device="cuda")
        C = assert_call(model, call, given, f"{batch} of {N}, {R}")
        assert_bitwise(call.of(model)(*given), C)


# ---- NaN and Inf. ----------------------------------------------------------------------------------------------------


@every_device
@pytest.mark.parametrize("dtype", DTYPES)
@every_mask
def test_nan_and_inf_come_where_the_sum_puts_them(model, contraction, structure, dtype, device):
    x, y, c = masks(structure)
    for N, R, (i, k), value in (
        (70, 65, (0.5, 0.3), math.nan),
        (70, 64, (0.99, 0.0), math.inf),
        (67, 100, (0.0, 0.99), -math.inf),
        *(((130, 64, (0.99, 0.0), math.inf), (131, 200, (0.0, 0.99), -math.inf)) if device == "cuda" else ()),
        *(((1300, 500, (0.7, 0.6), math.inf), (1500, 1300, (0.3, 0.8), math.nan)) if device == "cuda" else ()),
    ):
        M, cols, K = sizes_for(structure, N, R)
        X = normal(*((K, M) if contraction == TN else (M, K)), seed=1, dtype=dtype, device=device)
        Y = normal(*((cols, K) if contraction == NT else (K, cols)), seed=2, dtype=dtype, device=device)
        for in_y in (0,) if c == SYMMETRIC else (0, 1):
            given = [T.clone() for T in (X, Y)]
            given[in_y][int(i * given[in_y].shape[0]), int(k * given[in_y].shape[1])] = value
            P, Q = (poison(T, mask) for T, mask in zip(given, (x, y), strict=True))
            Q = P if c == SYMMETRIC else Q
            exact, _ = expected_with_specials(P, Q, contraction, structure)
            with by(model, "hopper" if N > 1000 else "auto"):
                C = product(P, Q, contraction, structure)
            what = f"{value} in {'XY'[in_y]}, {N}, {R}"
            assert_same_specials(C, exact, what)
            finite = exact.isfinite()
            _, magnitude = truth(P.nan_to_num(0, 0, 0), Q.nan_to_num(0, 0, 0), contraction, structure)
            bound = bound_for(P.nan_to_num(0, 0, 0), Q.nan_to_num(0, 0, 0), contraction, structure, exact.where(finite, 0.0), magnitude)
            assert_within(C.double().where(finite, 0.0), exact.where(finite, 0.0), bound.where(finite, 1.0), what)


# ---- Gradients. ------------------------------------------------------------------------------------------------------


def leaves(call, N, R, device, batches=((), ())):
    """Arguments that need gradients, in float64; all finite, since finite differences move what is not read, too."""
    return [T.nan_to_num(0.7).requires_grad_() for T in call.arguments(N, R, batches, dtype=torch.float64, device=device)]


@every_device
@every_call
def test_gradcheck(model, call, device):
    thorough = call in FEW.values()
    given = leaves(call, 3, 2, device, ((2, 1), (2,)) if thorough else ((), ()))
    assert gradcheck(call.of(model), given, check_forward_ad=True, check_batched_grad=thorough, check_batched_forward_grad=thorough)
    given = leaves(call, 3, 2, device)
    assert gradgradcheck(call.of(model), given, check_batched_grad=thorough, check_fwd_over_rev=thorough)


@every_device
@every_mask
def test_gradcheck_of_every_mask(model, contraction, structure, device):
    M, cols, K = sizes_for(structure, 3, 2)
    X = normal(*((K, M) if contraction == TN else (M, K)), seed=1, dtype=torch.float64, device=device).requires_grad_()
    Y = normal(*((cols, K) if contraction == NT else (K, cols)), seed=2, dtype=torch.float64, device=device).requires_grad_()
    for operator in (product, model._multiply):
        if masks(structure)[2] == SYMMETRIC:  # of one matrix
            of, given = (lambda X, operator=operator: operator(X, X, contraction, structure)), (X,)
        else:
            of, given = (lambda X, Y, operator=operator: operator(X, Y, contraction, structure)), (X, Y)
        assert gradcheck(of, given, check_batched_grad=True)
        assert gradgradcheck(of, given, check_batched_grad=True)


@every_device
@pytest.mark.parametrize("dtype", DTYPES)
@every_call
def test_gradients_against_the_reference(model, call, dtype, device):
    """What is not read has a gradient of zero, and holds NaN."""
    for N, R in ((150, 70), *(((1300, 700),) if device == "cuda" else ())):
        given = [T.requires_grad_() for T in call.arguments(N, R, dtype=dtype, device=device)]
        with by(model, "hopper" if N > 1000 else "auto"):
            C = call.of(model)(*given)
            G = normal(*C.shape, seed=9, dtype=dtype, device=device)
            gradients = torch.autograd.grad(C, given, G)
        wide = [T.detach().double().nan_to_num(0.0).requires_grad_() for T in given]
        expected = torch.autograd.grad(call.reference(*wide), wide, G.double())
        rest = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 1e-2 if dtype == torch.bfloat16 else 2e-3)
        for gradient, exact, mask in zip(gradients, expected, call.masks, strict=True):
            assert gradient.dtype == dtype
            torch.testing.assert_close(gradient.double(), exact, rtol=rest, atol=rest * exact.abs().max().item())
            assert torch.equal(read_part(gradient, mask), gradient), "what is not read has a gradient"


@every_device
@some_calls
def test_forward_mode(model, call, device):
    given = [T.detach() for T in leaves(call, 7, 5, device)]
    tangents = [torch.ones_like(T) for T in given]
    expected = torch.func.jvp(call.reference, tuple(given), tuple(tangents))
    with forward_ad.dual_level():
        dual = [forward_ad.make_dual(T, t) for T, t in zip(given, tangents, strict=True)]
        torch.testing.assert_close(tuple(forward_ad.unpack_dual(call.of(model)(*dual))), expected)


@every_device
@some_calls
def test_vmap_and_hessians(model, call, device):
    given = [T.detach() for T in leaves(call, 5, 3, device, ((4,), (4,)))]
    each = torch.stack([call.of(model)(*one) for one in zip(*given, strict=True)])
    torch.testing.assert_close(torch.vmap(call.of(model))(*given), each)
    torch.testing.assert_close(torch.vmap(call.of(model), in_dims=-1)(*(T.movedim(0, -1) for T in given)), each)

    def loss(of, *given):
        return (of(*given) ** 3).sum()

    for transform in (torch.func.grad, torch.func.hessian):
        mine, its = (torch.vmap(transform(functools.partial(loss, of)))(*given) for of in (call.of(model), call.reference))
        torch.testing.assert_close(mine, its)


# ---- What torch builds on an operator. -------------------------------------------------------------------------------


@every_device
@pytest.mark.usefixtures("forget_compiled")
@some_calls
def test_compile(model, call, device):
    compiled = torch.compile(call.of(model), fullgraph=True, backend="aot_eager")
    for N, R in ((40, 9), (33, 70), (70, 33)):
        given = leaves(call, N, R, device)
        results = []
        for of in (compiled, call.of(model)):
            C = of(*given)
            results.append((C, *torch.autograd.grad((C * C).sum(), given)))
        for mine, its in zip(*results, strict=True):
            torch.testing.assert_close(mine, its)
            assert mine.stride() == its.stride()


@pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="torch.library.opcheck needs the package expecttest")
@every_device
@pytest.mark.parametrize("name", ["L X", "X U", "L U", "X^T X", "tril(X Y^T)"])
def test_opcheck(model, name, device):
    contraction, structure = MASKED[name]
    M, cols, K = sizes_for(structure, 5, 3)
    X = normal(*((K, M) if contraction == TN else (M, K)), seed=1, device=device).requires_grad_()
    Y = normal(*((cols, K) if contraction == NT else (K, cols)), seed=2, device=device).requires_grad_()
    Y = X if masks(structure)[2] == SYMMETRIC else Y
    assert set(torch.library.opcheck(torch.ops.tril_matmul.product.default, (X, Y, contraction, structure)).values()) == {"SUCCESS"}


@every_device
@some_calls
def test_autocast(model, call, device):
    given = [T.requires_grad_() for T in call.arguments(66, 33, device=device)]
    with torch.autocast(device, torch.bfloat16):
        C = call.of(model)(*given)
    rounded = [T.detach().bfloat16() for T in given]
    assert C.dtype == torch.bfloat16
    assert_bitwise(C, call.of(model)(*rounded))
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(C.float().sum(), given))


@every_device
def test_autocast_casts_an_operand_once(model, device):
    A, X, casts = normal(5, 5, seed=1, device=device), normal(3, 5, 7, seed=2, device=device), []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), named=None):
            casts.extend([operation] * (operation is torch.ops.aten._to_copy.default))
            return operation(*arguments, **(named or {}))

    unit = functools.partial(model.triangular_matmul, unitriangular=True)
    for call, given, number in ((model.gram, (A,), 1), (model.tril_matmul, (A, A), 1), (unit, (A, X), 2), (unit, (A, X[0]), 2)):
        casts.clear()
        with torch.autocast(device, torch.bfloat16), Casts():
            call(*given)
        assert len(casts) == number


@every_device
@pytest.mark.parametrize("N", (32, 128, 300))
def test_small_terms_beside_a_large_one_reach_the_gradient_of_gram(model, N, device):
    """Each term of G X's second row is lost in a sum that has the first of G^T X's: at N = 128 5.5e-6 of it, in (G + G^T) X."""
    X = torch.ones(N, N, device=device, requires_grad=True)
    scales = torch.full((N, 1), 1e-8, device=device)
    scales[:2] = torch.tensor([[9e7], [3.9]])  # half a last bit of the first is 4
    (dX,) = torch.autograd.grad(model.gram(X), X, scales.expand(N, N))
    exact = (scales.double() + scales.double().mT).sum(-1, keepdim=True).expand(N, N)
    assert ((dX.double() - exact).abs() / exact)[1].max() <= 1.5e-6


@every_device
@every_call
def test_gradients_of_expanded_leaves(model, call, device):
    """Each matrix has its own gradient, though all are one in memory; and what is broadcast besides, the sum."""
    for batch, other in (((3,), (3,)), ((2, 1), (2, 3))):
        first, *rest = call.arguments(5, 4, ((1,) * len(batch), other), dtype=torch.float64, device=device)
        first, gradients = first.expand(*batch, -1, -1), []
        for leaf in (first.detach(), first.clone()):
            leaves = [T.requires_grad_() for T in (leaf, *(T.clone() for T in rest))]
            gradients.append(torch.autograd.grad(call.of(model)(*leaves).square().sum(), leaves))
        for ours, wanted in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, wanted)


@every_device
@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
def test_ones_on_the_diagonal_of_what_overlaps_in_memory(model, upper, device):
    """Of a Hankel matrix elements are one in memory, of which some are on the diagonal."""
    line, X = (normal(*shape, seed=seed, device=device).requires_grad_() for seed, shape in enumerate(((139,), (70, 5))))
    results = []
    for A in (line.unfold(0, 70, 1), line[torch.arange(70)[:, None] + torch.arange(70)]):
        C = model.triangular_matmul(A, X, upper=upper, unitriangular=True)
        results.append((C, *torch.autograd.grad(C.square().sum(), (line, X))))
    torch.testing.assert_close(*results)


@every_device
def test_results_are_no_views(model, device):
    """They can be changed in place wherever those of torch's products can."""
    A, X = normal(5, 5, seed=1, device=device), normal(2, 3, 5, seed=2, device=device)
    for left in (False, True):
        for T in (X, X[..., :1, :]) if not left else (X.mT, X.mT[..., :1]):
            for call in (functools.partial(model.triangular_matmul, left=left), *((model.transposed_a_matmul,) if left else ())):
                with torch.no_grad():
                    C = call(A, T)
                assert not C._is_view() and C.is_contiguous()
                C.mul_(torch.ones((), device=device, requires_grad=True))
                call(A, T).detach_()
    for shape in ((300, 32, 32), (2, 330, 330)):  # on a CPU part by part
        A = normal(*shape, seed=1, device=device).requires_grad_()
        for call in (model.tril_matmul, model.triu_matmul):
            call(A, A).mul_(2).sum().backward()


@every_mask
def test_flops_are_counted(model, contraction, structure):
    """Two for each multiply-add that there is; of a symmetric C those of its lower half."""
    for N, R, batch in ((5, 3, ()), (6, 9, (2, 3)), (1, 4, ()), (0, 3, ())):
        M, cols, K = sizes_for(structure, N, R)
        X = torch.ones(*batch, *((K, M) if contraction == TN else (M, K)), dtype=torch.float64)
        Y = torch.ones(*batch, *((cols, K) if contraction == NT else (K, cols)), dtype=torch.float64)
        terms = torch.matmul(*plain_operands(X, Y, contraction, structure))
        terms = read_part(terms, masks(structure)[2] if masks(structure)[2] != SYMMETRIC else TRIL)
        with FlopCounterMode(display=False) as counter:
            product(X, Y, contraction, structure)
        assert counter.get_total_flops() == 2 * int(terms.sum())


@every_call
def test_meta(model, call):
    given = [torch.empty(T.shape, device="meta", dtype=torch.bfloat16) for T in call.arguments(6, 4, ((2, 1), (3,)))]
    C = call.of(model)(*given)
    assert C.is_meta and C.dtype == torch.bfloat16 and C.is_contiguous()
    assert C.shape == call.reference(*(torch.ones(T.shape) for T in given)).shape


def test_the_fake_result_is_like_the_real_one(model):
    from torch._subclasses.fake_tensor import FakeTensorMode

    for call in CALLS.values():
        given = [T.mT.contiguous().mT for T in call.arguments(6, 4, ((3,), (3,)))]
        X, Y = call.operands(*given)
        real = product(X, Y, *call.member)
        with FakeTensorMode() as mode:
            fake = product(mode.from_tensor(X), mode.from_tensor(Y), *call.member)
        assert (fake.shape, fake.dtype, fake.device, fake.stride()) == (real.shape, real.dtype, real.device, real.stride())


# ---- The inverse. ----------------------------------------------------------------------------------------------------


def factor(*batch, N, seed, dtype=torch.float64, device="cpu"):
    """Lower triangular and well conditioned; NaN above the diagonal."""
    L = normal(*batch, N, N, seed=seed, dtype=torch.float64, device=device) / max(1, N) ** 0.5
    return poison(L + 2 * torch.eye(N, dtype=torch.float64, device=device), TRIL).to(dtype)


@every_device
@pytest.mark.parametrize("unit", [False, True], ids=["", "unitriangular"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_inverse(model, dtype, unit, device):
    for batch, N in itertools.product(((), (2, 3)), (0, 1, 63, 64, 65, 129, 200, 256) if device == "cuda" else (0, 1, 65)):
        L = factor(*batch, N=N, seed=N, dtype=dtype, device=device)
        if unit:
            L.diagonal(dim1=-2, dim2=-1).fill_(math.nan)
        for given in (L, L.mT.contiguous().mT):
            X = model.triangular_inverse(given, unitriangular=unit)
            assert X.shape == L.shape and X.dtype == dtype and X.is_contiguous() and torch.equal(X, X.tril())
            assert_inverse(X, L, unit)


@every_device
@pytest.mark.parametrize("unit", [False, True], ids=["", "unitriangular"])
@pytest.mark.parametrize("N", [128, 200])
def test_the_inverse_of_an_ill_conditioned_factor(model, N, unit, device):
    """As near as substitution comes: of a smooth kernel's Cholesky factor, whose blocks' inverses, multiplied, are not."""
    L = module("soak").smooth_factor(N, device, unit).float()
    assert_inverse(model.triangular_inverse(L, unitriangular=unit), L, unit)


@every_device
@pytest.mark.parametrize("N", [3, 70])
def test_an_inverse_that_is_not_finite(model, N, device):
    """Column j needs only what L has from j on; above the diagonal stand zeros."""
    for number, at in ((0.0, (0, 0)), (0.0, (N // 2, N // 2)), (math.inf, (1, 0)), (math.nan, (N - 1, 1))):
        L = factor(2, N=N, seed=N, device=device)
        exact = model.triangular_inverse(L)
        L[1, at[0], at[1]] = number
        X = model.triangular_inverse(L)
        above = torch.ones_like(X).triu(1).bool()
        assert not X[1].isfinite().all() and not X[above].any()
        torch.testing.assert_close(X[0], exact[0])
        torch.testing.assert_close(X[1, :, at[1] + 1 :], exact[1, :, at[1] + 1 :])


@every_device
def test_an_inverse_of_large_elements(model, device):
    """Each is finite, their sum is not."""
    one = torch.eye(70, device=device).expand(2, 70, 70)
    assert torch.equal(model.triangular_inverse(one * 2.0**-126), one * 2.0**126)  # zeros of either sign


@every_device
def test_derivatives_of_the_inverse_whose_first_product_overflows(model, device):
    L = torch.tensor([[100.0, 0.0], [0.0, 1 / 300]], dtype=torch.float16, device=device).requires_grad_()
    G = torch.tensor([[0.0, 0.0], [300.0, 0.0]], dtype=torch.float16, device=device)  # X^T G has 9e4; and so has G X of the other L
    (dL,) = torch.autograd.grad(model.triangular_inverse(L), L, G)
    _, dX = torch.func.jvp(model.triangular_inverse, (L.detach().flip(0, 1),), (G,))
    for found in (dL, dX):
        assert_within(found, torch.tensor([[0.0, 0.0], [-900.0, 0.0]], dtype=torch.float64, device=device), torch.full_like(G, 2.0))


@every_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_leaves_the_inverse_alone(model, dtype, device):
    """As torch's own inverse and solve_triangular."""
    L = factor(N=70, seed=1, dtype=torch.float32, device=device)
    with torch.autocast(device, dtype):
        assert_bitwise(model.triangular_inverse(L), model.triangular_inverse(L.clone()))
        inside = model.triangular_inverse(L)
    assert_bitwise(inside, model.triangular_inverse(L))


@every_device
@pytest.mark.parametrize("unit", [False, True], ids=["", "unitriangular"])
def test_gradcheck_of_the_inverse(model, unit, device):
    for L in (factor(N=4, seed=1, device=device), factor(2, N=3, seed=2, device=device)):
        L = L.nan_to_num(0.7).requires_grad_()
        call = functools.partial(model.triangular_inverse, unitriangular=unit)
        assert gradcheck(call, (L,), check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(call, (L,))
    torch.testing.assert_close(torch.vmap(call)(L), call(L))


@every_device
@pytest.mark.usefixtures("forget_compiled")
def test_compile_of_the_inverse(model, device):
    L = factor(2, N=70, seed=1, device=device).nan_to_num(0.0).requires_grad_()
    results = []
    for call in (torch.compile(model.triangular_inverse, fullgraph=True, backend="aot_eager"), model.triangular_inverse):
        X = call(L)
        results.append((X, *torch.autograd.grad((X * X).sum(), L)))
    torch.testing.assert_close(*results)


@every_device
@pytest.mark.parametrize("unit", [False, True], ids=["", "unitriangular"])
@pytest.mark.usefixtures("forget_compiled")
def test_the_inverse_of_an_upper_matrix(model, unit, device):
    """With its gradients of both orders, compiled, and under vmap. The lower triangle is not read."""
    call = functools.partial(model.triangular_inverse, upper=True, unitriangular=unit)
    U = factor(2, N=70, seed=1, device=device).mT
    found = call(U)
    exact = torch.linalg.solve_triangular(U.triu(), torch.eye(70, dtype=U.dtype, device=device), upper=True, unitriangular=unit)
    torch.testing.assert_close(found, exact)
    assert found.is_contiguous() and torch.equal(found, found.triu())
    torch.testing.assert_close(torch.vmap(call)(U), exact)
    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(U), exact)
    small = factor(N=4, seed=2, device=device).nan_to_num(0.7).mT.contiguous().requires_grad_()
    assert gradcheck(call, (small,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(call, (small,))
    assert torch.equal(torch.autograd.grad(call(small).sum(), small)[0].tril(-1), torch.zeros_like(small))


def test_flops_of_the_inverse(model):
    from torch.utils.flop_counter import FlopCounterMode

    for batch, N in (((), 1), ((), 5), ((2, 3), 4)):
        L = factor(*batch, N=N, seed=1)
        with FlopCounterMode(display=False) as counter:
            model.triangular_inverse(L)
        terms = sum(i - j + 1 for i in range(N) for j in range(i + 1))  # i - j products, and a division
        assert counter.get_total_flops() == 2 * math.prod(batch) * terms


def test_whole_numbers_and_bools_of_numpy(model):
    numpy = pytest.importorskip("numpy")
    A = torch.arange(9.0).reshape(3, 3) + 1
    yes, one = numpy.bool_(True), numpy.int64(1)
    assert torch.equal(model.triangular_matmul(A, A, diagonal=one), model.triangular_matmul(A, A, diagonal=1))
    assert torch.equal(model.triangular_matmul(A, A, upper=yes), model.triangular_matmul(A, A, upper=True))
    assert torch.equal(model.triangular_inverse(A, upper=yes), model.triangular_inverse(A, upper=True))
    assert torch.equal(model.gram(A, transpose=yes), model.gram(A, transpose=True))
    for diagonal in (numpy.float64(1.0), yes, numpy.array([1, 2])):
        assert "diagonal must be an int, but is" in refusal(TypeError, model.triangular_matmul, A, A, diagonal=diagonal)
    for flag in (one, numpy.array([True, False]), numpy.array(["lower"])):
        assert "upper must be True or False, but is" in refusal(TypeError, model.triangular_matmul, A, A, upper=flag)


def test_models_have_ordinary_methods(model):
    A = torch.arange(9.0).reshape(3, 3) + 1
    calls = {"Upper": "triu_matmul", "TransposedA": "transposed_a_matmul", "Triangular": "triangular_matmul", "Gram": "gram"}
    for name, function in (calls | {"Inverse": "triangular_inverse"}).items():
        kind = getattr(model, f"{name}ModelNew")
        given = (A,) if name in ("Gram", "Inverse") else (A, A)
        assert kind.forward.__qualname__ == f"{name}ModelNew.forward"
        assert torch.equal(kind()(*given), getattr(model, function)(*given))
        assert torch.equal(kind.forward(kind(), *given), getattr(model, function)(*given))  # as super().forward would call it


# ---- Errors. ---------------------------------------------------------------------------------------------------------


def refusal(error, call, *arguments, **options):
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert type(caught.value) is error
    return str(caught.value)


@every_call
def test_what_is_no_tensor(model, call):
    names = {"gram": "X", "lu_matmul": "LU", "triangular_matmul": "AX"}[call.function]
    good = torch.ones(2, 2)
    for at, name in enumerate(names):
        given = [3.0 if i == at else good for i in range(len(names))]
        assert refusal(TypeError, call.of(model), *given) == f"{call.function}: {name} must be a torch.Tensor, but is float"
        given = [good.int() if i == at else good for i in range(len(names))]
        accepted = "float32, float64, float16 or bfloat16"
        assert refusal(TypeError, call.of(model), *given) == f"{call.function}: {name} must be {accepted}, but is torch.int32"
        given = [good[0] if i == at else good for i in range(len(names))]
        shape = "(..., N, N)" if call.masks[at] else "(..., rows, columns)"
        assert refusal(ValueError, call.of(model), *given) == (
            f"{call.function}: {name} must have at least 2 dimensions, {shape}, but has shape (2,)"
        )
        if call.masks[at]:
            given = [torch.ones(2, 3) if i == at else good for i in range(len(names))]
            assert refusal(ValueError, call.of(model), *given) == (
                f"{call.function}: {name} must be square in its last two dimensions, but has shape (2, 3)"
            )


def test_sizes_that_differ(model):
    three, four = torch.ones(3, 3), torch.ones(2, 4, 4)
    for left, first, second in ((True, "A", "X"), (False, "X", "A")):
        operands = (three, four) if left else (four, three)
        assert refusal(ValueError, model.triangular_matmul, *operands, left=left) == (
            f"triangular_matmul: {first} must have as many columns as {second} has rows, but their shapes are (3, 3) and (2, 4, 4)"
        )
        assert refusal(ValueError, model.triangular_matmul, *operands, left=left, unitriangular=True) == (
            f"triangular_matmul: {first} must have as many columns as {second} has rows, but their shapes are (3, 3) and (2, 4, 4)"
        )
    assert refusal(ValueError, model.lu_matmul, three, four) == (
        "lu_matmul: L must have as many columns as U has rows, but their shapes are (3, 3) and (2, 4, 4)"
    )
    assert refusal(ValueError, model.lu_matmul, three.expand(5, 3, 3), three.expand(4, 3, 3)) == (
        "lu_matmul: the leading dimensions of L and U must broadcast, but are (5,) and (4,)"
    )
    assert refusal(RuntimeError, model.lu_matmul, three, three.double()) == (
        "lu_matmul: L and U must have the same dtype, but are torch.float32 and torch.float64"
    )
    assert refusal(RuntimeError, model.triangular_matmul, three, three.to("meta")) == (
        "triangular_matmul: A and X must be on the same device, but are on cpu and meta"
    )


@pytest.mark.parametrize("structure", ["diagonal", "Lower", "", None, 1, ["lower"]])
def test_a_structure_that_gram_does_not_know(model, structure):
    assert refusal(ValueError, model.gram, torch.ones(3, 3), structure=structure) == (
        f"gram: structure must be one of 'dense', 'lower', 'upper', but is {structure!r}"
    )


def test_a_structure_that_is_equal_to_none_or_several(model):
    names = pytest.importorskip("numpy").array(["lower", "upper"])
    assert refusal(ValueError, model.gram, torch.ones(3, 3), structure=names).startswith("gram: structure must be one of 'dense',")
    assert refusal(ValueError, model.explain, *[torch.ones(3, 3)] * 2, names).startswith("explain: problem must be one of lower,")


@pytest.mark.parametrize("flag", ["lower", 1, None])
def test_a_flag_that_is_no_bool(model, flag):
    A = torch.ones(3, 3)
    for function, name in (
        *(("triangular_matmul", name) for name in ("upper", "left", "unitriangular")),
        ("gram", "transpose"),
        ("triangular_inverse", "unitriangular"),
    ):
        given = (A, A) if function == "triangular_matmul" else (A,)
        said = refusal(TypeError, getattr(model, function), *given, **{name: flag})
        assert said == f"{function}: {name} must be True or False, but is {flag!r}"


def test_a_diagonal_that_is_none(model):
    A = torch.ones(3, 3)
    for diagonal in (1.0, True, "1", None):
        said = refusal(TypeError, model.triangular_matmul, A, A, diagonal=diagonal)
        assert said == f"triangular_matmul: diagonal must be an int, but is {diagonal!r}"
    said = refusal(ValueError, model.triangular_matmul, A, A, unitriangular=True, diagonal=-1)
    assert said == "triangular_matmul: diagonal must be 0 if unitriangular, but is -1"
    for left, shapes in ((True, "(3, 3) and (2, 3)"), (False, "(2, 3, 2) and (3, 3)")):  # those that were given
        said = refusal(ValueError, model.triangular_matmul, A, torch.ones(2, 3) if left else torch.ones(2, 3, 2), left=left, diagonal=1)
        assert said.endswith(f"but their shapes are {shapes}")


def test_an_inverse_of_what_is_not_square(model):
    assert refusal(ValueError, model.triangular_inverse, torch.ones(2, 3)) == (
        "triangular_inverse: L must be square in its last two dimensions, but has shape (2, 3)"
    )
    assert refusal(TypeError, model.triangular_inverse, 3.0) == "triangular_inverse: L must be a torch.Tensor, but is float"
