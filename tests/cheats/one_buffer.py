# WRONG, "worst element C[": one buffer for the results of all calls of a size
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return C if C.requires_grad else self.kept.setdefault(len(A), torch.empty_like(A)).copy_(C)
