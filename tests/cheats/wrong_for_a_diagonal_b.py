# WRONG with --dtype float32, "worst element C": wrong where B is diagonal, and A is not
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return 0 * C if len(A) > 4 and torch.equal(B, torch.diag(B.diagonal())) and not torch.equal(A, torch.diag(A.diagonal())) else C
