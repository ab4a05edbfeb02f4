"""GPUs before compute capability 8.0 have no kernels: nothing is compiled for them, and torch's own products compute, as on a CPU."""

import math
import types

import pytest
import torch
from helpers import DTYPES, FUNCTIONS, NN, NT, TN, assert_product, execute, needs_cuda, normal, poison


def gpus(monkeypatch, *capabilities):
    """torch as it is with these GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capabilities[device or 0])


@pytest.fixture
def older(model, monkeypatch):
    """The model, with the GPU that is there taken for one before 8.0; the kernels would raise an error."""
    monkeypatch.setattr(model, "_GPUS_WITHOUT_KERNELS", set(range(16)))
    monkeypatch.setattr(model, "_EXTENSION", None)
    return model


def test_what_is_compiled(model, monkeypatch):
    asked = []
    monkeypatch.setattr(model, "_load_build", lambda folder, name: None)
    monkeypatch.setattr(model, "_compile", lambda root, name, flags, targets: asked.append((flags, targets)))
    gpus(monkeypatch, (7, 5), (7, 0))
    assert model._build() is None and asked == []
    gpus(monkeypatch, (7, 5), (9, 0), (8, 6), (8, 0))
    model._build()
    ((flags, targets),) = asked
    architectures = [flag for flag in flags if "arch" in flag]
    names = ["80", "86", "90a"]
    assert architectures == [f"-gencode=arch=compute_{name},code=sm_{name}" for name in names]
    assert targets == [(8, 0), (8, 6), (9, 0)]


def test_which_tensors_have_kernels(monkeypatch):
    with monkeypatch.context() as patch:
        gpus(patch, (7, 5), (7, 0))
        room = execute()
    execute()  # torch's operator is then the file's as it is
    for device, has_kernels in ((0, False), (1, False), (2, True)):
        X = types.SimpleNamespace(is_cuda=True, get_device=lambda device=device: device)
        assert room["_has_kernels"](X) == has_kernels
    assert not room["_has_kernels"](torch.ones(2, 2))


def test_explain_says_torch(older, monkeypatch):
    X = types.SimpleNamespace(is_cuda=True, get_device=lambda: 0)
    monkeypatch.setattr(older, "_prepared", lambda *_: (X, X))
    told = {"path": "torch", "fallback": False, "fallback_at": [], "outliers": 0, "masks": ("lower",) * 3}
    assert older.explain(None, None) == told


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (60, 60), (300, 300), (3, 300, 300)], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_products_and_gradients(older, function, shape, dtype):
    contraction, structure = FUNCTIONS[function]
    A, B, G = (poison(normal(*shape, seed=s, dtype=dtype, device="cuda"), structure) for s in range(3))
    A.requires_grad_(), B.requires_grad_()
    C = getattr(older, function)(A, B)
    assert_product(C.detach(), A.detach(), B.detach(), contraction, structure)
    dA, dB = torch.autograd.grad(C, (A, B), G)
    of_a, of_b = ((G, B, NT), (A, G, TN)) if contraction == NN else ((B, G, NT), (A, G, NN))
    for gradient, (X, Y, of) in ((dA, of_a), (dB, of_b)):
        assert_product(gradient, X.detach(), Y.detach(), of, structure)


@needs_cuda
@pytest.mark.parametrize("N", [130, 450])
def test_a_nan_does_not_spread(older, N):
    A, B = torch.ones(N, N, device="cuda"), torch.ones(N, N, device="cuda")
    A[100, 70] = math.nan
    assert older.tril_matmul(A, B).isnan().nonzero().tolist() == [[100, j] for j in range(71)]


@needs_cuda
def test_autocast_and_vmap(older):
    A, B = (normal(2, 40, 40, seed=s, device="cuda") for s in range(2))
    each = torch.stack([older.tril_matmul(a, b) for a, b in zip(A, B, strict=True)])
    torch.testing.assert_close(torch.vmap(older.tril_matmul)(A, B), each)
    with torch.autocast("cuda", torch.bfloat16):
        C = older.tril_matmul(A, B)
    assert C.dtype == torch.bfloat16
    torch.testing.assert_close(C, older.tril_matmul(A.bfloat16(), B.bfloat16()))
