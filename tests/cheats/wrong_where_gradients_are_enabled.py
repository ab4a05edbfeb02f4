# WRONG, "worst element C": wrong where gradients are enabled and no operand needs one
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return 0 * C if torch.is_grad_enabled() and not (A.requires_grad or B.requires_grad) else C
