# ok: a view of a larger buffer
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return nn.functional.pad(C, (3, 5, 2, 1))[2:-1, 3:-5]
