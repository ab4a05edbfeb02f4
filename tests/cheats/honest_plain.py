# ok: the reference's own formula
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
