"""GPUs before compute capability 8.0 have no kernels: nothing is compiled for them, and torch's own products compute, as on a CPU."""

import importlib.machinery
import math
import os
import types

import pytest
import torch
from helpers import DTYPES, FUNCTIONS, NN, NT, SOURCE, TN, assert_product, execute, needs_cuda, normal, poison


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
    monkeypatch.setattr(model, "_CAPABILITIES", [(7, 5), (7, 0)])
    assert model._build() is None and asked == []
    monkeypatch.setattr(model, "_CAPABILITIES", [(7, 5), (9, 0), (10, 3), (10, 0), (8, 6), (12, 1), (8, 0)])
    model._build()
    ((flags, targets),) = asked
    architectures = [flag for flag in flags if "arch" in flag]
    names = ["80", "86", "90a", "100", "120"]
    assert architectures == [f"-gencode=arch=compute_{name},code=sm_{name}" for name in names]
    assert targets == [f"sm_{name}" for name in names]


@pytest.fixture
def asked(model, monkeypatch):
    """asked(): the folder of builds and the build's name, as the import would ask for them."""
    monkeypatch.setattr(model, "_load_build", lambda folder, name: None)
    monkeypatch.setattr(model, "_compile", lambda root, name, flags, targets: (root, name))
    monkeypatch.setattr(model, "_CAPABILITIES", [(9, 0)])
    return model._build


def test_a_build_has_another_name_where_anything_differs_that_decides_it(model, asked, monkeypatch):
    ours, names = asked()[1], []
    changes = [(model, "_CUDA_SOURCES", [*model._CUDA_SOURCES[:-1], model._CUDA_SOURCES[-1] + " "]), (model, "_CPP_BINDING", " ")]
    changes += [(model, "_NVCC_FLAGS", ["-O2"]), (torch, "__version__", "0"), (importlib.machinery, "EXTENSION_SUFFIXES", [".so"])]
    for changed in (*changes, (model, "_CAPABILITIES", [(8, 0)])):
        with monkeypatch.context() as patch:
            patch.setattr(*changed)
            names.append(asked()[1])
    assert len({ours, *names}) == 1 + len(names) and asked()[1] == ours


def test_where_builds_lie(asked, monkeypatch):
    """As torch has it: an empty variable is none."""
    for extensions, caches, folder in (("x", "y", "x"), ("", "/y", "/y/torch_extensions"), ("", "", "/home/.cache/torch_extensions")):
        for name, value in {"TORCH_EXTENSIONS_DIR": extensions, "XDG_CACHE_HOME": caches, "HOME": "/home"}.items():
            monkeypatch.setenv(name, value)
        assert asked()[0] == os.path.abspath(folder)


def test_which_tensors_have_kernels(monkeypatch):
    with monkeypatch.context() as patch:
        gpus(patch, (7, 5), (7, 0))
        room = execute()
        room["_CAPABILITIES"].append((8, 0))  # now that nothing would be built for it
        (line,) = (line for line in SOURCE.read_text().splitlines() if line.startswith("_GPUS_WITHOUT_KERNELS = "))
        exec(line, room)
    execute()  # torch's operator is then the file's as it is
    for device, has_kernels in ((0, False), (1, False), (2, True)):
        X = types.SimpleNamespace(is_cuda=True, get_device=lambda device=device: device)
        assert room["_has_kernels"](X) == has_kernels
    assert not room["_has_kernels"](torch.ones(2, 2))


def test_explain_says_torch(older, monkeypatch):
    X = types.SimpleNamespace(is_cuda=True, get_device=lambda: 0)
    monkeypatch.setattr(older, "_validate_and_broadcast", lambda *_: (X, X))
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
