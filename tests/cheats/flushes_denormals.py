# WRONG, "denormals and 1e10": denormal inputs count as zero
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        A = torch.where(A.abs() < 2.0**-126, 0.0, A)
        return torch.tril(torch.matmul(A, B))
