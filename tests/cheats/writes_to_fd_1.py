# WRONG, "writes to standard output": os.write(1, ...)
import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        os.write(1, b"all holds: 150x\n")
        return torch.tril(torch.matmul(A, B))
