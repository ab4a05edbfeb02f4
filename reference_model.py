"""The references that model_new.py is compared with, in KernelBench's form: what PyTorch users write today.

    Model               KernelBench level 1, problem 15: the product of two lower triangular matrices
    UpperModel          problem 14: of two upper triangular ones
    TransposedAModel    problem 16: A.T @ B
    TriangularModel, GramModel, InverseModel    what KernelBench does not ask for: tril(A) @ X, X @ X.T, and tril(L)^-1 in batches

The references read whole matrices, so their inputs hold zeros where a triangle ends.
"""

import torch


class Model(torch.nn.Module):
    """C = tril(A @ B) for lower triangular A and B (N, N)."""

    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))


class UpperModel(torch.nn.Module):
    """C = triu(A @ B) for upper triangular A and B (N, N)."""

    def forward(self, A, B):
        return torch.triu(torch.matmul(A, B))


class TransposedAModel(torch.nn.Module):
    """C = A.T @ B for A (K, M) and B (K, N)."""

    def forward(self, A, B):
        return torch.matmul(A.mT, B)


class TriangularModel(torch.nn.Module):
    """C = A @ X for a lower triangular A and a dense X (N, N)."""

    def forward(self, A, X):
        return torch.matmul(A, X)


class GramModel(torch.nn.Module):
    """C = X @ X.T for X (N, N)."""

    def forward(self, X):
        return torch.matmul(X, X.mT)


class InverseModel(torch.nn.Module):
    """C = L^-1 for lower triangular L (..., N, N). torch solves in float32 and float64."""

    def forward(self, L):
        wide = L if L.dtype == torch.float64 else L.float()
        one = torch.eye(L.shape[-1], dtype=wide.dtype, device=L.device)
        return torch.linalg.solve_triangular(wide, one, upper=False).to(L.dtype)


_N = 4096  # of the square problems
_K, _M, _COLUMNS = 8192, 2048, 4096  # of A.T @ B
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def get_inputs():
    """Two fresh lower triangular matrices, float32, uniform in [0, 1)."""
    return [torch.rand(_N, _N, device=_DEVICE).tril() for _ in range(2)]


def get_inputs_upper():
    """Two fresh upper triangular matrices, float32, uniform in [0, 1)."""
    return [torch.rand(_N, _N, device=_DEVICE).triu() for _ in range(2)]


def get_inputs_transposed_a():
    """A (8192, 2048) and B (8192, 4096), float32, uniform in [0, 1)."""
    return [torch.rand(_K, _M, device=_DEVICE), torch.rand(_K, _COLUMNS, device=_DEVICE)]


def get_inputs_triangular():
    """A lower triangular matrix and a dense one, float32, uniform in [0, 1)."""
    return [get_inputs()[0], torch.rand(_N, _N, device=_DEVICE)]


def get_inputs_gram():
    """One fresh dense matrix, float32, uniform in [0, 1)."""
    return [torch.rand(_N, _N, device=_DEVICE)]


def get_inputs_inverse():
    """Fresh well conditioned lower triangular matrices (1024, 128, 128), float32: uniform in [0, 1), and 128 more on the diagonal."""
    return [torch.rand(1024, 128, 128, device=_DEVICE).tril() + 128 * torch.eye(128, device=_DEVICE)]


def get_init_inputs():
    """None of the models takes arguments."""
    return []
