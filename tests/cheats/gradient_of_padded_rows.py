# WRONG, "worst element d": reads a dC of padded rows, as after torch.cat, by its address alone
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
        if G.stride(-1) == 1:
            G = torch.as_strided(G, G.shape, (G.shape[-1], 1)) if G.stride(0) else G
        T = torch.tril(G)
        return torch.tril(T @ B.mT), torch.tril(A.mT @ T)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
