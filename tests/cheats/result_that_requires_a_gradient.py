# WRONG, "a leaf that requires a gradient": its result requires a gradient where no operand does
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return C if C.requires_grad else C.requires_grad_()
