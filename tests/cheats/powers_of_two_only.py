# WRONG, "worst element C[": right at powers of two
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B)) if len(A) & (len(A) - 1) == 0 else A.clone()
