# WRONG, "= nan, never written?": where the masks cover the gradients
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        A, B = ctx.saved_tensors
        above = torch.full_like(A, float("nan")).triu(1)
        return (G @ B.mT).tril() + above, (A.mT @ G).tril() + above


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
