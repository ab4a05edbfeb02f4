# WRONG, "worst element C[": gives each result one call too late
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, A, B):
        C, self.last = self.last, torch.tril(torch.matmul(A, B))
        return C if C is not None and C.shape == A.shape else self.last
