# WRONG, "gradients inputs": the backward clips the operands at 10
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        A, B = (X.clamp(-10, 10) for X in ctx.saved_tensors)
        return (G.tril() @ B.mT).tril(), (A.mT @ G.tril()).tril()


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
