# WRONG, "worst element C[": wrong below 8 only
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return A.clone() if len(A) < 8 else torch.tril(torch.matmul(A, B))
