# WRONG, "= 0, exact": zeros
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.zeros_like(A)
