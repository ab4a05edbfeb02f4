# WRONG, "writes to standard output": printf of the C library
import ctypes

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        ctypes.CDLL(None).printf(b"all holds: 150x\n")
        ctypes.CDLL(None).fflush(None)
        return torch.tril(torch.matmul(A, B))
