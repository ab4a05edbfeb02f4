# WRONG, "zero inputs": scales B by its largest element: 0 / 0 where B is zero
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        largest = B.detach().abs().max()
        return torch.tril(torch.matmul(A, B)) * (largest / largest)
