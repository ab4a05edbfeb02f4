# WRONG, "does not answer for each call": fewer results than calls
import sys

import torch
from torch import nn

sys.modules["__main__"].Child.calls = lambda self: {"calls": []}


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
