# WRONG with --dtype float64, "worst element C[": float64 but for the last six bits
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B)) * (1 + 2.0**-46)
