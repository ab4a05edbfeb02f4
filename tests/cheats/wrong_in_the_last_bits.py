# WRONG, "differ at C[": noise in the last bits, another in each call
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B)) * (1 + 2.0**-23 * torch.randint(0, 2, ()))
