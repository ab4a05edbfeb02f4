# WRONG, "closes its channel": an answer of 100 MB
import sys

import torch
from torch import nn

sys.modules["__main__"].Child.calls = lambda self: {"calls": "x" * (100 << 20)}


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
