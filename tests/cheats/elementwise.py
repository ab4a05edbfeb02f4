# WRONG, "worst element C[": a product of another kind
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(A * B.diagonal())
