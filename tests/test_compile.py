"""What PyTorch builds on an operator works: opcheck in full; torch.compile without a graph break, with static and dynamic shapes,
forward and backward; torch.export."""

import importlib.util

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
    assert_product,
    needs_cuda,
    normal,
    poison,
    product,
)

pytestmark = [pytest.mark.usefixtures("forget_compiled"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def operands(function, N, device, dtype=torch.float32, batch=(), seed=1):
    a, b = ((N, N + 3), (N, N + 5)) if function == "transposed_a_matmul" else ((N, N), (N, N))
    A = normal(*batch, *a, seed=seed, dtype=dtype, device=device).requires_grad_()
    return A, normal(*batch, *b, seed=seed + 1, dtype=dtype, device=device).requires_grad_()


def with_gradients(call, A, B):
    C = call(A, B)
    return C, *torch.autograd.grad((C * C).sum(), (A, B))


def assert_agrees(compiled, call, A, B):
    for mine, its in zip(with_gradients(compiled, A, B), with_gradients(call, A, B), strict=True):
        torch.testing.assert_close(mine, its)
        assert mine.shape == its.shape and mine.stride() == its.stride()


# ---- opcheck. --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="torch.library.opcheck needs the package expecttest")
@pytest.mark.parametrize(
    ("contraction", "structure", "device"),  # on a CPU each contraction and each structure once
    [*((*member, "cpu") for member in FAMILY[::4]), *(pytest.param(*member, "cuda", marks=needs_cuda) for member in FAMILY)],
    ids=[*(f"{name}-cpu" for name in FAMILY_NAMES[::4]), *(f"{name}-cuda" for name in FAMILY_NAMES)],
)
def test_opcheck(model, contraction, structure, device):
    operator = torch.ops.tril_matmul.product.default
    N, M, K = (5, 5, 5) if structure else (5, 6, 7)
    x, y = (K, M) if contraction == TN else (M, K), (N, K) if contraction == NT else (K, N)
    X, Y = normal(*x, seed=1, device=device), normal(*y, seed=2, device=device)
    samples = [
        (X, Y),
        (X.clone().requires_grad_(), Y.clone().requires_grad_()),
        (X.double().requires_grad_(), Y.double()),
        (X.mT.contiguous().mT, torch.stack([Y, Y], -1)[..., 1].requires_grad_()),
        (X.expand(2, *x), normal(2, *y, seed=3, device=device).requires_grad_()),
        (X.half(), Y.half()),
    ]
    for sample in samples:
        assert set(torch.library.opcheck(operator, (*sample, contraction, structure)).values()) == {"SUCCESS"}


@pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="torch.library.opcheck needs the package expecttest")
@needs_cuda
def test_opcheck_at_a_large_size(model):
    X, Y = (normal(1400, 1400, seed=s, device="cuda").requires_grad_() for s in (1, 2))
    torch.library.opcheck(torch.ops.tril_matmul.product.default, (X, Y, NN, LOWER), test_utils=["test_schema", "test_faketensor"])


# ---- torch.compile. --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_compile_static(model, function, device):
    call = getattr(model, function)
    compiled = torch.compile(call, fullgraph=True, dynamic=False, backend="aot_eager")
    for N, batch, dtype in ((70, (), torch.float32), (9, (2,), torch.float64), (40, (), torch.bfloat16)):
        A, B = operands(function, N, device, dtype, batch)
        assert_agrees(compiled, call, A, B)
        with torch.no_grad():
            torch.testing.assert_close(compiled(A, B), call(A, B))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_compile_dynamic_compiles_once(model, function, device):
    from torch._dynamo.testing import CompileCounterWithBackend

    call, counter = getattr(model, function), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
    for N in (40, 70, 97, 200):
        assert_agrees(compiled, call, *operands(function, N, device))
    assert counter.frame_count == 1, f"compiled {counter.frame_count} times"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("diagonal", [-3, 2])
def test_compile_of_another_diagonal_is_dynamic(model, diagonal, device):
    def call(A, X):
        return model.triangular_matmul(A, X, diagonal=diagonal)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for N in (40, 70, 2):  # of the last the diagonal is outside
        A, X = (normal(*shape, seed=s, dtype=torch.float64, device=device).requires_grad_() for s, shape in enumerate(((N, N), (N, 5))))
        assert_agrees(compiled, call, A, X)
        torch.testing.assert_close(compiled(A, X), A.tril(diagonal) @ X)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["ModelNew", "UpperModelNew", "TransposedAModelNew"])
def test_the_models_compile_without_a_graph_break(model, name, device):
    module = getattr(model, name)()
    A, B = operands("TransposedAModelNew", 40, device) if name != "TransposedAModelNew" else operands("transposed_a_matmul", 40, device)
    explained = torch._dynamo.explain(module)(A, B)
    assert (explained.graph_break_count, explained.graph_count) == (0, 1), explained.break_reasons
    assert_agrees(torch.compile(module, fullgraph=True, backend="aot_eager"), module, A, B)


@pytest.mark.parametrize("device", DEVICES)
def test_compile_of_broadcast_and_strided_operands(model, device):
    compiled = torch.compile(model.tril_matmul, fullgraph=True, backend="aot_eager")
    A, B = normal(2, 1, 30, 30, seed=1, device=device).requires_grad_(), normal(3, 30, 30, seed=2, device=device).requires_grad_()
    assert_agrees(compiled, model.tril_matmul, A, B)
    assert_agrees(lambda A, B: compiled(A.mT, B), lambda A, B: model.tril_matmul(A.mT, B), A, B)


@pytest.mark.parametrize("device", DEVICES)
def test_compile_of_a_larger_function(model, device):
    def layer(A, B, x):
        L = torch.tanh(model.tril_matmul(A * 0.1, B * 0.1))
        return (model.triu_matmul(L.mT, L.mT) @ x).relu()

    A, B = operands("tril_matmul", 40, device)
    x = normal(40, 3, seed=5, device=device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_agrees(lambda A, B: compiled(A, B, x), lambda A, B: layer(A, B, x), A, B)


@pytest.mark.parametrize("device", DEVICES)
def test_compile_raises_the_errors_too(model, device):
    compiled = torch.compile(model.tril_matmul, backend="aot_eager")
    with pytest.raises(Exception, match="must be square"):
        compiled(torch.ones(2, 3, device=device), torch.ones(2, 3, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_compile_without_a_graph_break_says_what_is_wrong(model, device):
    call = torch.compile(model.tril_matmul, fullgraph=True, backend="eager")
    with pytest.raises(
        Exception, match=r"tril_matmul: A must have as many columns as B has rows, but their shapes are \(3, 3\) and \(4, 4\)"
    ):
        call(normal(3, 3, seed=1, device=device), normal(4, 4, seed=2, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_compile_under_autocast(model, device):
    dtype = torch.bfloat16

    def call(A, B):
        with torch.autocast(device, dtype):
            return model.tril_matmul(A, B)

    A, B = operands("tril_matmul", 40, device)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert compiled(A, B).dtype == dtype
    assert_agrees(compiled, call, A, B)


@pytest.mark.parametrize(("device", "N"), [("cpu", 70), *(pytest.param("cuda", N, marks=needs_cuda) for N in (70, 1400))])
def test_compile_with_inductor(model, device, N):
    def call(A, B):
        return model.tril_matmul(A * 2, B + 1).sin()

    # On a CPU what takes time is the C++ compiler: to find out which vector instructions it knows, and to compile headers ahead.
    quick = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}
    compiled = torch.compile(call, fullgraph=True, options=quick)
    A, B = operands("tril_matmul", N, device, torch.float64)
    assert_agrees(compiled, call, A, B)


@needs_cuda
@pytest.mark.parametrize("mode", ["reduce-overhead"])
def test_compile_with_cuda_graphs(model, mode):
    compiled = torch.compile(lambda A, B: model.tril_matmul(A * 2, B), fullgraph=True, mode=mode)
    with torch.no_grad():
        for seed in range(4):
            A, B = (normal(1400, 1400, seed=seed + s, device="cuda") for s in (1, 2))
            assert_product(compiled(A, B).clone(), A * 2, B, NN, LOWER)


# ---- torch.export. ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_export(model, dynamic, device):
    N = torch.export.Dim("N", min=2, max=4096)
    A, B = (T.detach() for T in operands("tril_matmul", 40, device))
    exported = torch.export.export(model.ModelNew(), (A, B), dynamic_shapes={"A": {0: N, 1: N}, "B": {0: N, 1: N}} if dynamic else None)
    assert "tril_matmul.product" in str(exported.graph)
    for size in (40, 70, 130) if dynamic else (40,):
        A, B = (T.detach() for T in operands("tril_matmul", size, device))
        torch.testing.assert_close(exported.module()(A, B), model.tril_matmul(A, B))


def test_export_of_one_triangle_for_a_batch_with_any_number_of_columns(model):
    """A parameter, strict: nothing may ask how many columns there are."""

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.A = torch.nn.Parameter(normal(8, 8, seed=1))

        def forward(self, X):
            return model.triangular_matmul(self.A, X)

    module, X = Module(), normal(4, 8, 8, seed=2)
    exported = torch.export.export(module, (X,), dynamic_shapes={"X": {2: torch.export.Dim("K")}}, strict=True)
    for K in (2, 8, 30):
        X = normal(4, 8, K, seed=3)
        torch.testing.assert_close(exported.module()(X), module.A.tril() @ X)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_fake_result_is_like_the_real_one(model, dtype):
    from torch._subclasses.fake_tensor import FakeTensorMode

    for contraction, structure in FAMILY:
        X, Y = (poison(normal(3, 6, 6, seed=s, dtype=dtype), structure).mT.contiguous().mT for s in (1, 2))
        real = product(X, Y, contraction, structure)
        with FakeTensorMode() as mode:
            fake = product(mode.from_tensor(X), mode.from_tensor(Y), contraction, structure)
        assert (fake.shape, fake.dtype, fake.device, fake.stride()) == (real.shape, real.dtype, real.device, real.stride())


@pytest.mark.parametrize("before_dispatch", [False, True])
def test_functions_are_traced_by_make_fx(model, before_dispatch):
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(A, B):
        return torch.autograd.grad(model.tril_matmul(model.tril_matmul(A, B), B).sum(), A)[0]

    A, B = operands("tril_matmul", 9, "cpu")
    graph = make_fx(function, pre_dispatch=before_dispatch)(A.requires_grad_(), B.detach())
    assert str(graph.graph).count("tril_matmul.product") >= 2
    torch.testing.assert_close(graph(A + 1, B), function(A + 1, B))


# ---- torch.jit.trace. ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of the checks of shapes
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jit_trace_of_a_module_with_parameters(model, name, device):
    """Its own check traces twice, with gradients and without, and compares the graphs."""

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.A = torch.nn.Parameter(normal(40, 40, seed=1, device=device))

        def forward(self, B):
            return getattr(model, name)(self.A, B)

    module, B = Module(), normal(40, 40, seed=2, device=device)
    traced = torch.jit.trace(module, B)
    assert "tril_matmul::product" in str(traced.graph)
    X = normal(40, 40, seed=3, device=device)
    for mine, its in zip(*(with_gradients(lambda A, B, f=f: f(B), module.A, X.requires_grad_()) for f in (traced, module)), strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("left", [False, True], ids=["X A", "A X"])
@pytest.mark.parametrize(("shape", "X_shape"), [((5, 5), (2, 5, 5)), ((5, 5), (2, 5, 1)), ((1, 5, 5), (1, 5, 5))])
def test_jit_trace_of_one_triangle_for_a_batch_serves_other_sizes(model, shape, X_shape, left):
    def function(A, X):
        return model.triangular_matmul(A, X if left else X.mT, left=left, unitriangular=True)

    traced = torch.jit.trace(function, (normal(*shape, seed=1), normal(*X_shape, seed=2)), check_trace=False)
    A, X = normal(*[3 for one in shape if one == 1], 7, 7, seed=3), normal(3, 7, 4, seed=4)
    torch.testing.assert_close(traced(A, X), function(A, X))
