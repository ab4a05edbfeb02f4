# WRONG with --size 200, "gradients": operands of backward saturate at 65504 above N = 150, as in half precision
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(torch.matmul(A, B))

    @staticmethod
    def backward(ctx, G):
        A, B = ctx.saved_tensors
        if A.shape[-1] > 150:
            A, B = (X.clamp(-65504.0, 65504.0) for X in (A, B))
        G = G.tril()
        return (G @ B.mT).tril(), (A.mT @ G).tril()


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
