# WRONG with --dtype float64, "normal": float64 whose exponents are float32's
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        A, B = (torch.where(X.abs() < 2.0**-126, 0.0, X).clamp(-3.4e38, 3.4e38) for X in (A, B))
        return torch.tril(torch.matmul(A, B))
