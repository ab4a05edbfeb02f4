# WRONG, "the solution raises RuntimeError: odd": refuses odd sizes
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        if len(A) % 2:
            raise RuntimeError("odd")
        return torch.tril(torch.matmul(A, B))
