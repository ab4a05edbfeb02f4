"""Derivatives of derivatives, in either mode, of what is compiled or exported, and compiled ones: as torch's own operators have them."""

import contextlib
import functools

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from helpers import DEVICES, needs_hopper, normal
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

pytestmark = [
    pytest.mark.usefixtures("forget_compiled"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*data pointer of FunctionalTensorWrapper"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),  # of linearize
]

N = 4


def inverse_reference(L):
    return torch.linalg.solve_triangular(L.tril(), torch.eye(N, dtype=L.dtype, device=L.device), upper=False)


# Of two matrices (N, N), by our functions and by torch's.
FUNCTIONS = {
    "product": (lambda model: model.tril_matmul, lambda A, B: A.tril() @ B.tril()),
    "dense": (lambda model: model.transposed_a_matmul, lambda A, B: A.mT @ B),
    "gram": (lambda model: lambda A, B: model.gram(A) @ B, lambda A, B: A @ A.mT @ B),
    "inverse": (lambda model: lambda A, B: model.triangular_inverse(A) @ B, lambda A, B: inverse_reference(A) @ B),
    "unit": (
        lambda model: functools.partial(model.triangular_matmul, unitriangular=True),
        lambda A, B: (A.tril(-1) + torch.eye(N, dtype=A.dtype, device=A.device)) @ B,
    ),
    "other diagonals": (
        lambda model: lambda A, B: model.triangular_matmul(A, model.triangular_matmul(B, A, upper=True, diagonal=-1), diagonal=1),
        lambda A, B: A.tril(1) @ (B.triu(-1) @ A),
    ),
}


def loss(f, A, B):
    return (f(A, B) @ f(B, A)).sum()


def twice_forward(f, A, B):
    def once(A):
        return jvp(lambda A: f(A, A), (A,), (B,))[1]

    return jvp(once, (A,), (B + 1,))[1]


def thrice_forward(f, A, B):
    return jvp(lambda A: twice_forward(lambda X, Y: f(f(X, Y), X), A, B), (A,), (B,))[1]


# What torch.func makes of a function of A and B.
TRANSFORMS = {
    "jvp": lambda f, A, B: jvp(f, (A, B), (B, A + 1))[1],
    "jvp of a constant": lambda f, A, B: jvp(lambda A: f(A, B), (A,), (B,))[1],
    "jvp of jvp": twice_forward,
    "jvp of jvp of jvp": thrice_forward,
    "jacfwd": lambda f, A, B: jacfwd(f, argnums=1)(A, B),
    "jacfwd of jacfwd": lambda f, A, B: jacfwd(jacfwd(lambda A: loss(f, A, B)))(A),
    "jacrev of jacfwd": lambda f, A, B: jacrev(jacfwd(lambda A: loss(f, A, B)))(A),
    "jacrev of jacrev": lambda f, A, B: jacrev(jacrev(lambda A: loss(f, A, B)))(A),
    "hessian": lambda f, A, B: hessian(lambda A: loss(f, A, B))(A),
    "grad": lambda f, A, B: grad(lambda A: loss(f, A, B))(A),
    "vjp": lambda f, A, B: vjp(f, A, B)[1](A)[1],
    "vmap of grad": lambda f, A, B: vmap(grad(lambda A: loss(f, A, B)))(torch.stack([A, B])),
    "vmap of jvp": lambda f, A, B: vmap(lambda A: jvp(lambda A: f(A, B), (A,), (B,))[1])(torch.stack([A, B])),
    "functionalize": lambda f, A, B: functionalize(f)(A, B),
    "linearize": lambda f, A, B: linearize(f, A, B)[1](B, A + 1),
}


def dual(f, A, B):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(A, B), B)).tangent


def reverse_of_dual(f, A, B):
    A, tangent = A.clone().requires_grad_(), B.clone().requires_grad_()
    with forward_ad.dual_level():
        both = forward_ad.unpack_dual(f(forward_ad.make_dual(A, tangent), B))
        return torch.stack(torch.autograd.grad((both.tangent**2).sum() + both.primal.sum(), (A, tangent)))


def dual_of_reverse(f, A, B):
    with forward_ad.dual_level():
        A = forward_ad.make_dual(A.clone().requires_grad_(), B)
        return forward_ad.unpack_dual(torch.autograd.grad(loss(f, A, B), A, create_graph=True)[0]).tangent


def twice_reverse(f, A, B):
    A, B = (T.clone().requires_grad_() for T in (A, B))
    (first,) = torch.autograd.grad(loss(f, A, B), A, create_graph=True)
    return torch.stack(torch.autograd.grad((first**2).sum(), (A, B)))


MODES = {"dual": dual, "reverse of dual": reverse_of_dual, "dual of reverse": dual_of_reverse, "reverse of reverse": twice_reverse}


@pytest.fixture(params=DEVICES)
def matrices(request):
    one = 2 * torch.eye(N, dtype=torch.float64, device=request.param)
    return [normal(N, N, seed=seed, dtype=torch.float64, device=request.param) / 2 + one for seed in (1, 2)]


@pytest.mark.parametrize("name", [*TRANSFORMS, *MODES])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives(model, function, name, matrices):
    of, reference = FUNCTIONS[function]
    derivative = (TRANSFORMS | MODES)[name]
    torch.testing.assert_close(derivative(of(model), *matrices), derivative(reference, *matrices))


@pytest.mark.parametrize("name", ["jvp", "jacfwd", "grad", "vjp", "hessian", "vmap of grad"])
@pytest.mark.parametrize("function", ["product", "gram", "inverse"])
def test_compiled_derivatives(model, function, name, matrices):
    of, reference = FUNCTIONS[function]
    compiled = torch.compile(functools.partial(TRANSFORMS[name], of(model)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*matrices), TRANSFORMS[name](reference, *matrices))


@pytest.mark.parametrize("name", ["dual", "jvp", "vmap of grad", "hessian"])
@pytest.mark.parametrize("function", ["product", "gram", "inverse"])
def test_derivatives_of_what_is_compiled(model, function, name, matrices):
    of, reference = FUNCTIONS[function]
    derivative = (TRANSFORMS | MODES)[name]
    mine = derivative(torch.compile(of(model), backend="aot_eager"), *matrices)
    torch.testing.assert_close(mine, derivative(reference, *matrices))


@pytest.mark.parametrize("function", ["product", "inverse"])
def test_derivatives_of_what_is_exported(model, function, matrices):
    of, reference = FUNCTIONS[function]

    class Module(torch.nn.Module):
        def forward(self, A, B):
            return of(model)(A, B)

    exported = torch.export.export(Module(), tuple(matrices)).module()
    for name in ("jvp", "grad"):
        torch.testing.assert_close(TRANSFORMS[name](exported, *matrices), TRANSFORMS[name](reference, *matrices))


@pytest.mark.parametrize("outer", ["grad", "jvp", "reverse"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_grad_inside_of_a_derivative(model, function, outer, matrices):
    """What is computed there is a constant for every level around it."""

    def derivative(f):
        def constant_too(A):
            with torch.no_grad():
                C = f(A, A)
            return (A @ C).sum()

        def first(A):
            return grad(constant_too)(A).sum()

        A, B = matrices
        if outer == "reverse":
            A = A.clone().requires_grad_()
            total = first(A)
            return torch.autograd.grad(total, A, allow_unused=True)[0] if total.requires_grad else None
        return grad(first)(A) if outer == "grad" else jvp(first, (A,), (B,))[1]

    of, reference = FUNCTIONS[function]
    mine, its = derivative(of(model)), derivative(reference)
    assert (mine is None) == (its is None)
    if its is not None:
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("function", ["product", "dense", "inverse", "gram"])
def test_compiled_autograd(model, function, fullgraph, matrices):
    from torch._dynamo import compiled_autograd

    gradients = []
    for f in (FUNCTIONS[function][0](model), FUNCTIONS[function][1]):
        A, B = (T.clone().requires_grad_() for T in matrices)
        C = f(A, B)
        with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=fullgraph)):
            C.square().sum().backward()
        gradients.append((A.grad, B.grad))
    torch.testing.assert_close(*gradients)


@needs_hopper
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_autograd_of_operands_kept_packed(model, fullgraph):
    from torch._dynamo import compiled_autograd

    gradients = []
    for compile_it in (True, False):
        A, B = (normal(1300, 1300, seed=seed, device="cuda").requires_grad_() for seed in (1, 2))
        C = model.tril_matmul(A, B)
        way = torch.compile(backend="eager", fullgraph=fullgraph)
        with compiled_autograd._enable(way) if compile_it else contextlib.nullcontext():
            C.square().sum().backward()
        gradients.append((A.grad, B.grad))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-3)
