# WRONG, "worst element C[": wrong from 32 to 63
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B)) * (1 + (32 <= len(A) < 64))
