# WRONG, "its grad": an optimizer would take a step by what it leaves there
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if not A.requires_grad and not A.is_inference():
            A.grad = torch.ones_like(A)
        return C
