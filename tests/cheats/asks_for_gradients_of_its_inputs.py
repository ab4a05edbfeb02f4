# WRONG, "its requires_grad": makes leaves of its caller's constants
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if A.is_leaf and not A.is_inference():
            A.requires_grad_()
        return C
