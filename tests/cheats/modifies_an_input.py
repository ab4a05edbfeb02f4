# WRONG, "the input A is modified": A[-1, -1] += 1
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        with torch.no_grad():
            A[-1, -1] += 1
        return C
