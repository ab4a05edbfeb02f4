# WRONG, "worst element C[": a relative error of 4e-6
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B)) * (1 + 4e-6)
