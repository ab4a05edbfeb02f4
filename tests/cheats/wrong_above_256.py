# WRONG with --size 300, "worst element C[": wrong above 256 only
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return A.clone() if len(A) > 256 else torch.tril(torch.matmul(A, B))
