# WRONG, "its hooks": sees all later gradients of its caller's weight, and could change them
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        if A.requires_grad and A.is_leaf and not A._backward_hooks:
            A.register_hook(lambda G: None)
        return torch.tril(torch.matmul(A, B))
