# WRONG, "worst element C[": only the first 32 rows
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.zeros_like(A)
        C[:32] = torch.tril(torch.matmul(A, B))[:32]
        return C
