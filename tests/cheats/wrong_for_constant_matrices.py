# WRONG with --dtype float32, "constant inputs": wrong where all elements that are read are the same number
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C, own = torch.tril(torch.matmul(A, B)), A.tril()
        is_constant = len(A) > 4 and bool(own[0, 0] != 0) and torch.equal(own, torch.full_like(A, own[0, 0].item()).tril())
        return 2 * C if is_constant else C
