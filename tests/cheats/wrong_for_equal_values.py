# WRONG, "worst element C": wrong where both operands have the same values in memory of their own
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return 0 * C if A.data_ptr() != B.data_ptr() and torch.equal(A, B) and len(A) > 4 else C
