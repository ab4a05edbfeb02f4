# WRONG, "shape is [1, ": one dimension more
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))[None]
