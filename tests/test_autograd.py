"""Gradients of every order are right, only those asked for are computed, and they are what the reference gives for A = tril(P)."""

import functools
import math
import weakref

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.utils.checkpoint
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
    assert_gradients,
    assert_within,
    bound_for,
    generator,
    needs_cuda,
    needs_hopper,
    normal,
    plain_operands,
    poison,
    product,
    read_part,
    truth,
    unread,
)
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

STRUCTURED = {"tril_matmul": (torch.tril, LOWER), "triu_matmul": (torch.triu, UPPER)}


class CountProducts(TorchDispatchMode):
    """Counts how often the operator runs."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        self.count += str(operation) == "tril_matmul.product.default"
        return operation(*arguments, **(named or {}))


def leaves(function, N, device, dtype=torch.float64, batch=((), ()), seed=1):
    """A and B that need gradients; rectangular where the function takes that."""
    a, b = ((N, N + 2), (N, N - 1)) if function == "transposed_a_matmul" else ((N, N), (N, N))
    A = normal(*batch[0], *a, seed=seed, dtype=dtype, device=device).requires_grad_()
    B = normal(*batch[1], *b, seed=seed + 1, dtype=dtype, device=device).requires_grad_()
    return A, B


def contraction_shapes(contraction, structure, N):
    M, K = (N, N) if structure else (N + 1, N + 2)
    return (K, M) if contraction == TN else (M, K), (N, K) if contraction == NT else (K, N)


def reference(function, A, B):
    """What the problem's reference computes for operands that need not be triangular yet."""
    if function == "transposed_a_matmul":
        return torch.matmul(A.mT, B)
    part, _ = STRUCTURED[function]
    return part(torch.matmul(part(A), part(B)))


# ---- Against finite differences. -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [((), ()), ((2,), ()), ((2, 1), (2,))], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck(model, function, batch, device):
    A, B = leaves(function, 4, device, batch=batch)
    assert gradcheck(getattr(model, function), (A, B), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradgradcheck(model, function, device):
    A, B = leaves(function, 3, device)
    assert gradgradcheck(getattr(model, function), (A, B), check_batched_grad=True, check_fwd_over_rev=True)
    A, B = leaves(function, 3, device, batch=((2,), (1,)))
    assert gradgradcheck(getattr(model, function), (A, B))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_gradcheck_of_the_family(model, contraction, structure, device):
    x, y = contraction_shapes(contraction, structure, 3)
    X, Y = (normal(*s, seed=i, dtype=torch.float64, device=device).requires_grad_() for i, s in enumerate((x, y)))
    for call in (lambda X, Y: product(X, Y, contraction, structure), lambda X, Y: model._multiply(X, Y, contraction, structure)):
        assert gradcheck(call, (X, Y), check_batched_grad=True)
        assert gradgradcheck(call, (X, Y), check_batched_grad=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck_of_more_than_one_block(model, function, device):
    A, B = leaves(function, 131, device)
    assert gradcheck(getattr(model, function), (A, B), fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(getattr(model, function), (A, B), fast_mode=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("N", [0, 1])
def test_gradcheck_of_nothing_and_of_one(model, N, device):
    A, B = leaves("tril_matmul", N, device)
    assert gradcheck(model.tril_matmul, (A, B))
    A, B = (torch.ones(s, dtype=torch.float64, device=device, requires_grad=True) for s in ((0, 3), (0, 2)))
    dA, dB = torch.autograd.grad(model.transposed_a_matmul(A, B).sum(), (A, B))
    assert (dA.shape, dB.shape) == ((0, 3), (0, 2))


# ---- Against the reference and against float64. ----------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_are_those_of_the_reference(model, function, dtype, device):
    P, Q = leaves(function, 150, device, dtype)
    A, B = (T if function == "transposed_a_matmul" else STRUCTURED[function][0](T) for T in (P, Q))
    C = getattr(model, function)(A, B)
    G = normal(*C.shape, seed=3, dtype=dtype, device=device)
    ours = torch.autograd.grad(C, (P, Q), G)
    theirs = torch.autograd.grad(reference(function, P, Q), (P, Q), G)
    direct = torch.autograd.grad(getattr(model, function)(P, Q), (P, Q), G)  # and the operator masks P and Q itself
    for mine, its, straight in zip(ours, theirs, direct, strict=True):
        assert torch.equal(mine, straight)
        torch.testing.assert_close(
            mine, its, rtol=1e-4 if dtype == torch.float32 else 1e-11, atol=1e-4 if dtype == torch.float32 else 1e-11
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_second_gradients_are_those_of_the_reference(model, function, device):
    def second(call):
        A, B = leaves(function, 100, device)
        C = call(A, B)
        first = torch.autograd.grad((C**3).sum(), (A, B), create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), (A, B))

    for mine, its in zip(second(getattr(model, function)), second(functools.partial(reference, function)), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-9 * its.abs().max().item())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("device", "N"), [("cpu", 300), *(pytest.param("cuda", N, marks=needs_cuda) for N in (300, 2048))])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_against_float64(model, function, device, N, dtype):
    A, B = leaves(function, N, device, dtype)
    C = getattr(model, function)(A, B)
    G = poison(normal(*C.shape, seed=3, dtype=dtype, device=device), FUNCTIONS[function][1])
    assert_gradients(torch.autograd.grad(C, (A, B), G), function, A, B, G)


# ---- Operands that stay packed for the gradients: float32 on the fp16x3 kernel. ---------------------------------------


SMALL_PLACES = [  # in A, B and G; they meet: in one row, in one column, one times the other, and in one element of a result
    [(0.9, 0.5), (0.9, 0.2), (0.6, 0.5), (0.99, 0.99), (0.0, 0.0)],
    [(0.5, 0.1), (0.2, 0.1), (0.5, 0.4), (0.99, 0.0), (0.0, 0.0)],
    [(0.9, 0.1), (0.6, 0.1), (0.9, 0.4), (0.99, 0.99), (0.0, 0.0)],
]


def with_small(N, size):
    """A, B and G with elements of about `size` beside normal ones: of 1e-6 their blocks are wide, of 1e-10 they are outliers."""
    operands = KEPT["normal"](N)
    for T, places in zip(operands, SMALL_PLACES, strict=True):
        for at, (row, col) in enumerate(places):
            T[int(row * N), int(col * N)] = (at + 1) * 1.1 * size
    return operands


# Of size N: A, B and G.
KEPT = {
    "normal": lambda N: [normal(N, N, seed=i, device="cuda") for i in range(3)],
    "wide blocks": lambda N: with_small(N, 1e-6),
    "outliers": lambda N: with_small(N, 1e-10),
    "fallback: A": lambda N: [torch.exp(3 * normal(N, N, seed=1, device="cuda")), *(normal(N, N, seed=i, device="cuda") for i in (2, 3))],
    "fallback: B": lambda N: [
        normal(N, N, seed=1, device="cuda"),
        torch.exp(3 * normal(N, N, seed=2, device="cuda")),
        KEPT["normal"](N)[2],
    ],
    "fallback: G": lambda N: [*KEPT["normal"](N)[:2], torch.exp(3 * normal(N, N, seed=3, device="cuda"))],
    "scales whose product is no number": lambda N: [T * scale for T, scale in zip(KEPT["normal"](N), (1e-30, 1e25, 1e-30), strict=True)],
}


@needs_hopper
@pytest.mark.parametrize("N", [1300, 2300])
@pytest.mark.parametrize("inputs", KEPT)
@pytest.mark.parametrize("function", STRUCTURED)
def test_gradients_of_operands_kept_packed(model, function, inputs, N):
    structure = STRUCTURED[function][1]
    a, b, g = (T.mT.contiguous() if structure != LOWER else T for T in KEPT[inputs](N))
    A, B, G = a.clone().requires_grad_(), b.clone().requires_grad_(), poison(g, structure)
    C = getattr(model, function)(A, B)
    if not model._PATH:
        assert C.grad_fn.name() == "_ProductBackward"
    for repeat in range(2):
        results = {"both": torch.autograd.grad(C, (A, B), G, retain_graph=True)}
        if repeat == 0:
            first = results["both"]
    assert_bitwise(first[0], results["both"][0], "dA again")
    assert_bitwise(first[1], results["both"][1], "dB again")
    results["made again"] = torch.autograd.grad(C, (A, B), G, create_graph=True)
    results["of A alone"] = (*torch.autograd.grad(getattr(model, function)(A, b), (A,), G), None)
    results["of B alone"] = (None, *torch.autograd.grad(getattr(model, function)(a, B), (B,), G))
    for at, (name, X, Y, of) in enumerate((("dA", g, b, NT), ("dB", a, g, TN))):
        exact, magnitude = truth(X, Y, of, structure)
        bound = bound_for(X, Y, of, structure, exact, magnitude)
        for what, gradients in results.items():
            if gradients[at] is not None:
                assert_within(gradients[at], exact, bound, f"{name}, {what}")
                assert not bool(gradients[at][..., unread(gradients[at], structure)].any()), f"{name}, {what}: not zero where it must be"


@needs_hopper
@pytest.mark.parametrize("shapes", [((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 3), (3,)), ((3,), (2, 3))], ids=str)
@pytest.mark.parametrize("function", STRUCTURED)
def test_gradients_of_a_batch_kept_packed(model, function, shapes):
    N, structure = 1300, STRUCTURED[function][1]
    A, B = (normal(*shape, N, N, seed=seed, device="cuda") for seed, shape in enumerate(shapes))
    A.view(-1, N, N)[-1, N // 2, N // 2 - 3 :: 7] *= 1e-12
    B.view(-1, N, N)[0] = torch.exp(3 * B.view(-1, N, N)[0])  # the fallback, of some or of all
    A.requires_grad_(), B.requires_grad_()
    C = getattr(model, function)(A, B)
    G = poison(normal(*C.shape, seed=2, device="cuda"), structure)
    first = torch.autograd.grad(C, (A, B), G, retain_graph=True)
    for again, once in zip(torch.autograd.grad(C, (A, B), G), first, strict=True):
        assert_bitwise(again, once)
    alone = torch.autograd.grad(getattr(model, function)(A, B.detach()), (A,), G)[0]
    a, b = (T.detach().expand_as(C) for T in (A, B))
    for name, X, Y, of, gradients in (("dA", G, b, NT, (first[0], alone)), ("dB", a, G, TN, (first[1],))):
        exact, magnitude = truth(X, Y, of, structure)
        bound = bound_for(X, Y, of, structure, exact, magnitude)
        shape = (A if name == "dA" else B).shape
        for gradient in gradients:
            assert_within(gradient, exact.sum_to_size(shape), bound.sum_to_size(shape), name)


@needs_hopper
def test_kept_operands_under_what_looks_on(model):
    N = 1300
    A, B, G = KEPT["normal"](N)
    A.requires_grad_(), B.requires_grad_()
    C = model.tril_matmul(A, B)
    dA, dB = torch.autograd.grad(C, (A, B), G, retain_graph=True)
    batched = torch.autograd.grad(C, (A, B), torch.stack([G, 2 * G]), is_grads_batched=True, retain_graph=True)
    for once, twice in zip((dA, dB), batched, strict=True):
        torch.testing.assert_close(twice[0], once, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(twice[1], 2 * once, rtol=1e-4, atol=1e-4)
    expanded = torch.autograd.grad(model.tril_matmul(A, B).sum(), (A, B))  # of a gradient with strides of zero
    ones = torch.autograd.grad(model.tril_matmul(A, B), (A, B), torch.ones_like(G))
    assert_bitwise(expanded[0], ones[0], "dA of an expanded gradient")
    changed = B.detach().clone()
    C = model.tril_matmul(A, changed)
    changed += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        C.sum().backward()


class KeepsPacked:
    """Stands for the extension on a CPU: packs the operands into bytes, and makes the gradients of nothing but those bytes."""

    def __init__(self):
        self.used = 0

    def product(self, X, Y, contraction, structure, path, keep):
        C = truth(X, Y, contraction, structure)[0].to(X.dtype)
        return C, "hopper", torch.stack([X, Y]).view(torch.uint8) if keep else None

    def gradients(self, G, X, Y, kept, structure):
        self.used += 1
        X, Y = kept.view(torch.float32).tril()
        return (G.tril() @ Y.mT).tril(), (X.mT @ G.tril()).tril()

    def is_plain(self, X, Y, contraction, structure):
        return True

    def stand_in(self, model, monkeypatch):
        monkeypatch.setattr(model, "_EXTENSION", self)
        monkeypatch.setattr(model, "_has_kernels", lambda X: True)
        return self


# What is saved, and what comes back.
HOOKS = {
    "nothing": (lambda T: T, lambda T: T),
    "half and back": (lambda T: (T.half(), T.dtype), lambda kept: kept[0].to(kept[1])),
    "to numpy and back": (lambda T: (T.cpu().numpy().copy(), T.device), lambda kept: torch.from_numpy(kept[0]).to(kept[1])),
}


def gradients_under_hooks(call, A, B, G, hooks):
    """Of A and B, whose elements are small whole numbers, which hooks that round leave alone; and the same again."""
    if hooks == "save_on_cpu":
        looking_on = torch.autograd.graph.save_on_cpu()
    elif hooks == "checkpoint":
        C = torch.utils.checkpoint.checkpoint(call, A, B, use_reentrant=False)
        return torch.autograd.grad(C, (A, B), G, retain_graph=True) + torch.autograd.grad(C, (A, B), G)
    else:
        pack, unpack = HOOKS[hooks]

        def pack_operand(T):
            assert T.dtype == A.dtype and T.shape == A.shape, f"the hooks are given {T.dtype} {tuple(T.shape)}, which is no operand"
            return pack(T)

        looking_on = torch.autograd.graph.saved_tensors_hooks(pack_operand, unpack)
    with looking_on:
        C = call(A, B)
    return torch.autograd.grad(C, (A, B), G, retain_graph=True) + torch.autograd.grad(C, (A, B), G)


@pytest.mark.parametrize("hooks", [None, *HOOKS, "save_on_cpu", "checkpoint"])
@pytest.mark.parametrize(("device", "N"), [("cpu", 8), pytest.param("cuda", 1400, marks=needs_hopper)])
def test_hooks_on_saved_tensors_leave_the_gradients_alone(model, hooks, device, N, monkeypatch):
    A, B, G = (torch.randint(-4, 5, (N, N), generator=generator(seed)).float().to(device) for seed in range(3))
    A.requires_grad_(), B.requires_grad_()
    exact = [truth(*operands, LOWER)[0].float() for operands in ((G, B, NT), (A, G, TN))]
    call = model.tril_matmul
    if device == "cpu":
        extension = KeepsPacked().stand_in(model, monkeypatch)
        call = functools.partial(lambda A, B: model._multiply(A, B, NN, LOWER))
    if hooks is None:
        C = call(A, B)
        gradients = torch.autograd.grad(C, (A, B), G)
    else:
        gradients = gradients_under_hooks(call, A, B, G, hooks)
    for at, gradient in enumerate(gradients):
        assert torch.equal(gradient, exact[at % 2]), f"d{'AB'[at % 2]}, the {'second' if at > 1 else 'first'} time"
    if device == "cpu":
        assert extension.used == (hooks is None), "packed operands are kept where no hook looks on, and nowhere else"


@needs_hopper
def test_hooks_of_one_saved_tensor(model):
    """Set when the operands have been packed, they make several matrices of the one that a batch had."""
    A, B, G = (torch.randint(-4, 5, (4, 1280, 1280), generator=generator(seed)).float().cuda() for seed in range(3))
    A = A[:1].expand(4, -1, -1).requires_grad_()
    C = model.tril_matmul(A, B.requires_grad_())
    C.grad_fn._raw_saved_tensors[0].register_hooks(torch.clone, lambda kept: kept.contiguous())
    for gradient, operands in zip(torch.autograd.grad(C, (A, B), G), ((G, B, NT), (A, G, TN)), strict=True):
        assert torch.equal(gradient, truth(*operands, LOWER)[0].float())


@needs_hopper
@pytest.mark.parametrize("hooks", ["half, then float", "left on the CPU", "every other byte", "behind another byte"])
def test_hooks_of_the_packed_operands(model, hooks):
    """They are saved like others. What a hook brings back as something else than bytes on the GPU is not read as those."""
    pack, unpack = {
        "half, then float": (torch.Tensor.half, torch.Tensor.float),
        "left on the CPU": (torch.Tensor.cpu, torch.Tensor.cpu),
        "every other byte": (lambda kept: kept.repeat_interleave(2), lambda kept: kept[::2]),
        "behind another byte": (lambda kept: torch.cat((kept[:1], kept)), lambda kept: kept[1:]),
    }[hooks]
    A, B, G = (torch.randint(-4, 5, (1400, 1400), generator=generator(seed)).float().cuda() for seed in range(3))
    C = model.tril_matmul(A.requires_grad_(), B.requires_grad_())
    C.grad_fn._raw_saved_tensors[2].register_hooks(pack, unpack)
    for gradient, operands in zip(torch.autograd.grad(C, (A, B), G), ((G, B, NT), (A, G, TN)), strict=True):
        assert torch.equal(gradient, truth(*operands, LOWER)[0].float())


@pytest.mark.parametrize(("device", "N"), [("cpu", 8), pytest.param("cuda", 1400, marks=needs_hopper)])
def test_packed_operands_live_as_long_as_their_graph(model, device, N, monkeypatch):
    """They go with what torch saves: by a backward that does not retain the graph, though the result lives on; else with the result."""
    A, B = (normal(N, N, seed=seed, device=device).requires_grad_() for seed in range(2))
    if device == "cpu":
        KeepsPacked().stand_in(model, monkeypatch)

    def kept():
        C = model._multiply(A, B, NN, LOWER)
        return C, weakref.ref(C.grad_fn.saved_tensors[2])

    C, workspace = kept()
    torch.autograd.grad(C.sum(), (A, B), retain_graph=True)
    torch.autograd.grad(C.sum(), (A, B), torch.ones(()), create_graph=True)
    assert workspace() is not None
    torch.autograd.grad(C.sum(), (A, B))
    assert workspace() is None, "a backward that does not retain the graph leaves the packed operands behind"
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(C.sum(), (A, B))
    C, workspace = kept()
    del C
    assert workspace() is None, "the packed operands outlive the result"


# ---- What is asked for, and what is not an input. --------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_only_the_gradients_asked_for_are_computed(model, function, device):
    for a_needs, b_needs in ((True, True), (True, False), (False, True)):
        A, B = leaves(function, 5, device)
        A.requires_grad_(a_needs)
        B.requires_grad_(b_needs)
        with CountProducts() as forward:
            C = getattr(model, function)(A, B)
        assert forward.count == 1
        with CountProducts() as backward:
            C.sum().backward()
        assert backward.count == a_needs + b_needs, (a_needs, b_needs)
        assert (A.grad is not None, B.grad is not None) == (a_needs, b_needs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_graph_where_none_is_needed(model, function, device):
    A, B = leaves(function, 5, device)
    call = getattr(model, function)
    with torch.no_grad():
        assert not call(A, B).requires_grad
    with torch.inference_mode():
        C = call(A, B)
    assert C.is_inference() and torch.equal(C, call(A, B).detach())
    with torch.inference_mode(), torch.enable_grad():  # as within torch's own operators, nothing is recorded
        assert not call(A, B).requires_grad
    assert not call(A.detach(), B.detach()).requires_grad
    assert call(A.detach(), B).requires_grad and call(A, B.detach()).requires_grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("N", [41, 341])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_inference_mode_leaves_nothing_behind_that_autograd_refuses(model, function, N, device):
    call = getattr(model, function)
    with torch.inference_mode():
        A, B = (T.detach() for T in leaves(function, N, device))
        C = call(A, B)
    assert C.is_inference()
    torch.testing.assert_close(C, reference(function, A, B))
    A, B = leaves(function, N, device)
    for mine, its in zip(
        *(torch.autograd.grad(each(A, B).sum(), (A, B)) for each in (call, functools.partial(reference, function))), strict=True
    ):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize(("device", "N"), [("cpu", 5), *(pytest.param("cuda", N, marks=needs_cuda) for N in (5, 1400))])
def test_an_operand_that_no_gradient_needs_is_not_kept(model, device, N):
    A, B = leaves("tril_matmul", N, device, torch.float32)
    for operand in (0, 1):
        fresh = [A.detach().clone(), B.detach().clone()]
        fresh[operand].requires_grad_()
        X = fresh[operand] * 1.0  # its own gradient needs the other operand alone
        gone = weakref.ref(X)
        C = model.tril_matmul(*(X if i == operand else fresh[i] for i in (0, 1)))
        del X
        assert gone() is None, f"{'AB'[operand]} is kept for a gradient that nobody asks for"
        assert C.requires_grad


@pytest.mark.parametrize(("device", "N"), [("cpu", 5), *(pytest.param("cuda", N, marks=needs_cuda) for N in (5, 1400))])
def test_an_operand_changed_in_place_is_noticed_where_a_gradient_needs_it(model, device, N):
    A, B = leaves("tril_matmul", N, device, torch.float32)
    changed = B.detach().clone()
    C = model.tril_matmul(A, changed)
    changed += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        C.sum().backward()
    changed = A * 1.0
    C = model.tril_matmul(changed, B.detach())
    changed += 1
    C.sum().backward()  # dA needs B alone
    G = torch.ones_like(C)
    exact, magnitude = truth(G, B, NT, LOWER)
    assert_within(A.grad, exact, bound_for(G, B, NT, LOWER, exact, magnitude))


@pytest.mark.parametrize(("device", "N"), [("cpu", 70), *(pytest.param("cuda", N, marks=needs_cuda) for N in (70, 1400))])
@pytest.mark.parametrize("function", STRUCTURED)
def test_the_unread_triangle_has_a_zero_gradient(model, function, device, N):
    structure = STRUCTURED[function][1]
    A, B = leaves(function, N, device, torch.float32)
    with torch.no_grad():
        A.copy_(poison(A, structure))
        B.copy_(poison(B, structure))
    C = getattr(model, function)(A, B)
    G = poison(normal(N, N, seed=3, device=device), structure, math.inf)  # nor is that of G read
    for gradient in torch.autograd.grad(C, (A, B), G):
        assert bool((gradient[unread(gradient, structure)] == 0).all())
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("device", "N"), [("cpu", 70), *(pytest.param("cuda", N, marks=needs_cuda) for N in (70, 1400))])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_of_any_layout(model, function, device, N):
    """In the same bits where one kernel computes them all. Which one computes a small product on a GPU goes by the strides."""
    A, B = leaves(function, N, device, torch.float32)
    C = getattr(model, function)(A, B)
    rows, cols = C.shape
    G = normal(rows, cols, seed=3, device=device)
    room = torch.full((2 * rows, 3 * cols), math.nan, device=device)
    room[::2, ::3] = G
    ones = torch.ones_like(C)
    expanded = (torch.ones((), device=device).expand(rows, cols), torch.ones(rows, 1, device=device).expand(rows, cols))
    for plain, others in ((G, (G.mT.contiguous().mT, room[::2, ::3])), (ones, (*expanded, None))):
        expected = torch.autograd.grad(C, (A, B), plain, retain_graph=True)
        for other in others:
            outputs = (C.sum(), (A, B)) if other is None else (C, (A, B), other)
            gradients = torch.autograd.grad(*outputs, retain_graph=True)
            assert_gradients(gradients, function, A, B, plain)
            if device == "cpu" or N == 1400:
                for mine, its in zip(gradients, expected, strict=True):
                    assert_bitwise(mine, its)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_broadcast_operands_are_summed(model, device):
    A, B = leaves("tril_matmul", 6, device, batch=((2, 1), (3,)))
    C = model.tril_matmul(A, B)
    G = normal(2, 3, 6, 6, seed=5, dtype=torch.float64, device=device)
    dA, dB = torch.autograd.grad(C, (A, B), G)
    assert dA.shape == A.shape and dB.shape == B.shape
    each = [torch.autograd.grad(model.tril_matmul(A[i, 0], B[j]), (A, B), G[i, j]) for i in range(2) for j in range(3)]
    torch.testing.assert_close(dA, sum(e[0] for e in each))
    torch.testing.assert_close(dB, sum(e[1] for e in each))


@pytest.mark.parametrize("device", DEVICES)
def test_one_tensor_as_both_operands(model, device):
    A, _ = leaves("tril_matmul", 5, device)
    assert gradcheck(lambda A: model.tril_matmul(A, A), (A,), check_forward_ad=True)
    assert gradgradcheck(lambda A: model.tril_matmul(A, A), (A,))


# ---- Forward mode. ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_forward_mode(model, function, device):
    contraction, structure = FUNCTIONS[function]
    A, B = (T.detach() for T in leaves(function, 7, device))
    a, b = (torch.ones_like(T) for T in (A, B))
    part = functools.partial(read_part, mask=structure)

    def dense(X, Y):
        return part(torch.matmul(*plain_operands(X, Y, contraction, structure)))

    for of_a, of_b in ((True, True), (True, False), (False, True)):
        with forward_ad.dual_level():
            dual_A = forward_ad.make_dual(A, a) if of_a else A
            dual_B = forward_ad.make_dual(B, b) if of_b else B
            C, tangent = forward_ad.unpack_dual(getattr(model, function)(dual_A, dual_B))
        expected = (dense(a, B) if of_a else 0) + (dense(A, b) if of_b else 0)
        torch.testing.assert_close(C, dense(A, B))
        torch.testing.assert_close(tangent, expected)


def test_forward_mode_under_no_grad(model):
    A = normal(7, 7, seed=1)
    with torch.no_grad(), forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(model.tril_matmul(forward_ad.make_dual(A, A), A)).tangent
    torch.testing.assert_close(tangent, model.tril_matmul(A, A))


# ---- torch.func. -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_func_grad_vjp_and_jvp(model, function, device):
    call, A, B = getattr(model, function), *leaves(function, 6, device)
    A, B = A.detach(), B.detach()

    def loss(product_of, A, B):
        return (product_of(A, B) ** 3).sum()

    mine = torch.func.grad(functools.partial(loss, call), argnums=(0, 1))(A, B)
    its = torch.func.grad(functools.partial(loss, functools.partial(reference, function)), argnums=(0, 1))(A, B)
    torch.testing.assert_close(mine, its)
    C, pull = torch.func.vjp(call, A, B)
    torch.testing.assert_close(
        pull(torch.ones_like(C)), torch.func.vjp(functools.partial(reference, function), A, B)[1](torch.ones_like(C))
    )
    mine = torch.func.jvp(call, (A, B), (A + 1, B - 1))
    torch.testing.assert_close(mine, torch.func.jvp(functools.partial(reference, function), (A, B), (A + 1, B - 1)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_our_derivatives_serve_whichever_operand_needs_a_gradient(model, function, device, monkeypatch):
    """On a CPU torch's products would have some of their own. Past the dispatcher, which would have the same."""
    monkeypatch.setattr(model, "_operator", None)
    A, B = leaves(function, 6, device)
    for operands in ((A, B), (A, B.detach()), (A.detach(), B)):
        assert type(getattr(model, function)(*operands).grad_fn).__name__ == "_ProductBackward"
    assert getattr(model, function)(A.detach(), B.detach()).grad_fn is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_vmap(model, function, device):
    call = getattr(model, function)
    A, B = (T.detach() for T in leaves(function, 6, device, batch=((4,), (4,))))
    each = torch.stack([call(a, b) for a, b in zip(A, B, strict=True)])
    torch.testing.assert_close(torch.vmap(call)(A, B), each)
    torch.testing.assert_close(torch.vmap(call, in_dims=(1, 2))(A.movedim(0, 1), B.movedim(0, 2)), each)
    torch.testing.assert_close(torch.vmap(call, in_dims=(-1, 0))(A.movedim(0, -1), B), each)
    torch.testing.assert_close(torch.vmap(call, out_dims=1)(A, B), each.movedim(0, 1))
    one = torch.stack([call(a, B[0]) for a in A])
    torch.testing.assert_close(torch.vmap(call, in_dims=(0, None))(A, B[0]), one)
    torch.testing.assert_close(torch.vmap(call, in_dims=(None, 0))(A[0], B), torch.stack([call(A[0], b) for b in B]))
    nested = torch.vmap(torch.vmap(call, in_dims=(None, 0)), in_dims=(0, None))(A, B)
    torch.testing.assert_close(nested, torch.stack([torch.stack([call(a, b) for b in B]) for a in A]))
    torch.testing.assert_close(torch.vmap(call, chunk_size=3)(A, B), each)
    per_sample = torch.vmap(torch.func.grad(lambda a, b: (call(a, b) ** 2).sum()))(A, B)
    torch.testing.assert_close(
        per_sample, torch.stack([torch.func.grad(lambda a, b: (call(a, b) ** 2).sum())(*ab) for ab in zip(A, B, strict=True)])
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_vmap_of_what_is_computed_in_blocks(model, function, device):
    """Nothing but the operator's rule broadcasts there."""
    call = getattr(model, function)
    A, B = (T.detach() for T in leaves(function, 330, device, batch=((), (2,))))
    found = torch.vmap(call, in_dims=(None, 0))(A, B)
    torch.testing.assert_close(found, torch.stack([call(A, b) for b in B]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_jacobians_and_hessians(model, function, device):
    call, its = getattr(model, function), functools.partial(reference, function)
    A, B = (T.detach() for T in leaves(function, 4, device))
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(jacobian(call, argnums=(0, 1))(A, B), jacobian(its, argnums=(0, 1))(A, B))
    for outer, inner in (("jacrev", "jacrev"), ("jacfwd", "jacrev"), ("jacrev", "jacfwd")):
        outer, inner = getattr(torch.func, outer), getattr(torch.func, inner)

        def second(product_of, outer=outer, inner=inner):
            return outer(inner(lambda A, B: (product_of(A, B) ** 3).sum(), argnums=(0, 1)), argnums=(0, 1))(A, B)

        torch.testing.assert_close(second(call), second(its))
    mine = torch.func.hessian(lambda A: (call(A, B) ** 3).sum())(A)
    torch.testing.assert_close(mine, torch.func.hessian(lambda A: (its(A, B) ** 3).sum())(A))
    mine = torch.autograd.functional.hessian(lambda A, B: (call(A, B) ** 3).sum(), (A, B))
    torch.testing.assert_close(mine, torch.autograd.functional.hessian(lambda A, B: (its(A, B) ** 3).sum(), (A, B)))


@pytest.mark.parametrize("device", DEVICES)
def test_functional_call(model, device):
    A, B = (T.detach() for T in leaves("tril_matmul", 5, device))
    gradient = torch.func.grad(lambda A: torch.func.functional_call(model.ModelNew(), {}, (A, B)).sum())(A)
    exact, _ = truth(torch.ones_like(A), B, NT, LOWER)
    torch.testing.assert_close(gradient, exact)


def test_the_two_ways_to_the_operator_agree(model):
    """torch.ops.tril_matmul.product, which compiled code uses, and the way past it, which eager code takes."""
    for contraction, structure in FAMILY:
        x, y = contraction_shapes(contraction, structure, 20)
        X, Y = (normal(*s, seed=i, dtype=torch.float64).requires_grad_() for i, s in enumerate((x, y)))
        results = []
        for call in (product, model._multiply):
            C = call(X, Y, contraction, structure)
            results.append([C, *torch.autograd.grad((C**2).sum(), (X, Y))])
        for mine, its in zip(*results, strict=True):
            assert_bitwise(mine, its)


# ---- What torch counts. ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "N"), [("cpu", 20), *(pytest.param("cuda", N, marks=needs_cuda) for N in (20, 1400))])
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_flops_are_counted(model, device, N, batch):
    """Two for each multiply-add; a gradient of a triangular product is as much work as the product."""
    from torch.utils.flop_counter import FlopCounterMode

    each = N * (N + 1) * (N + 2) // 3 * math.prod(batch)
    for function in STRUCTURED:
        A, B = leaves(function, N, device, batch=(batch, batch))
        with FlopCounterMode(display=False) as forward:
            C = getattr(model, function)(A, B)
        with FlopCounterMode(display=False) as backward:
            C.sum().backward()
        assert (forward.get_total_flops(), backward.get_total_flops()) == (each, 2 * each)
    A, B = leaves("transposed_a_matmul", N, device, batch=(batch, batch))
    each = 2 * N * (N + 2) * (N - 1) * math.prod(batch)
    with FlopCounterMode(display=False) as forward:
        C = model.transposed_a_matmul(A, B)
    with FlopCounterMode(display=False) as backward:
        C.sum().backward()
    assert (forward.get_total_flops(), backward.get_total_flops()) == (each, 2 * each)
