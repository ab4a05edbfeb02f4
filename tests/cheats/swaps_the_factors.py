# WRONG, "worst element C[": B A
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(B, A))
