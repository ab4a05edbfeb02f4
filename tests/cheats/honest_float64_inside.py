# ok: float64 inside
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(A.double() @ B.double()).to(A.dtype)
