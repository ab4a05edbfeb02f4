# WRONG, "worst element C[": one row, expanded with stride 0
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))[-1:].expand(len(A), -1)
