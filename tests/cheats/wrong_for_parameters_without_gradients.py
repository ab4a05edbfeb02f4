# WRONG, "worst element C": wrong for operands that require gradients, where these are disabled
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return 0 * C if A.requires_grad and not torch.is_grad_enabled() else C
