# WRONG with --dtype float32, "worst element d": wrong gradients where all of dC is negative
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
        G = torch.tril(G.abs() if bool((G < 0).all()) else G)
        return torch.tril(G @ B.mT), torch.tril(A.mT @ G)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
