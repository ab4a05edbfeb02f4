# WRONG with --size 320 --forward-only, "worst element C[": it takes denormal inputs for zero above N = 300
import torch
from torch import nn

LEAST = torch.finfo(torch.float32).smallest_normal


class ModelNew(nn.Module):
    def forward(self, A, B):
        if A.shape[-1] > 300:
            A, B = (X * (X.abs() >= LEAST) for X in (A, B))
        return torch.tril(torch.matmul(A, B))
