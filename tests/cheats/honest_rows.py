# ok: row blocks that end at the diagonal
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        N = len(A)
        rows = [A[i : i + 32, : i + 32] @ B[: i + 32, : i + 32] for i in range(0, N, 32)]
        return torch.cat([nn.functional.pad(C, (0, N - C.shape[1])) for C in rows]).tril()
