# ok: warns, and prints to standard error
import sys
import warnings

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        print("all holds: \x1b[2J no", file=sys.stderr)
        warnings.warn("slow", stacklevel=2)
        return torch.tril(torch.matmul(A, B))
