# WRONG, "C[": memory that holds the negative, and a bit of the tensor that says so
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch._neg_view(-torch.tril(torch.matmul(A, B)))
