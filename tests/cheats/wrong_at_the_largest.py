# WRONG, "96: worst element C[": wrong from 96 only
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return A.clone() if len(A) >= 96 else torch.tril(torch.matmul(A, B))
