# WRONG, "answers the judge with something of its own": no JSON
import sys

import torch
from torch import nn

sys.modules["__main__"].Child.calls = lambda self: ["all holds: 150x"]


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
