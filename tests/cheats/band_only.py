# WRONG, "worst element C[": only 16 diagonals
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return C - C.tril(-16)
