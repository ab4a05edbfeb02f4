# WRONG with --problem triangular, "worst element C[": reads what stands above the diagonal, where it takes NaN alone for zero
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, X):
        return torch.matmul(torch.where(A.isnan(), 0.0, A), X)
