# WRONG, "worst element C[": leaves out what is beyond the last whole tile
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        n = len(A) // 16 * 16
        C = torch.zeros_like(A)
        C[:n, :n] = torch.tril(A[:n, :n] @ B[:n, :n])
        return C
