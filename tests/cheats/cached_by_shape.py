# WRONG, "worst element C[": a cache by shape
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, A, B):
        key = A.shape
        if key not in self.kept:
            self.kept[key] = torch.tril(torch.matmul(A, B))
        return self.kept[key].clone()
