# WRONG, "does not require grad": computes under no_grad
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        with torch.no_grad():
            return torch.tril(torch.matmul(A, B))
