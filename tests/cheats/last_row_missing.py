# WRONG, "= nan, never written?": the last row is not written, which poisoned memory shows
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.empty_like(A)
        C[:-1] = torch.tril(torch.matmul(A, B))[:-1]
        return C
