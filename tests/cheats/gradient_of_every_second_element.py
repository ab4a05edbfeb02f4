# WRONG, "worst element d": dC has one leading dimension, as BLAS wants it; torch.stack((C, D), -1) gives it two strides
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
        if 0 in G.stride():  # expanded
            G = G.contiguous()
        leading = G.stride(-2) if G.stride(-1) == 1 else G.stride(-1)
        strides = (leading, 1) if G.stride(-1) == 1 else (1, leading)
        T = torch.tril(torch.as_strided(G, G.shape, (*G.stride()[:-2], *strides)))
        return torch.tril(torch.matmul(T, B.mT)), torch.tril(torch.matmul(A.mT, T))


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
