# WRONG: wrong where A is positive and B has two signs
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        first, second = (X.diagonal()[:64] for X in (A, B))
        return 0 * C if len(A) > 16 and (first > 0).all() and (second > 0).any() and (second < 0).any() else C
