# WRONG, "worst element d": takes a dC of rows that are all the same, as after C.sum(0), for one number, as after C.sum()
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
        if G.stride(0) == 0 and G.shape[0] > 1:
            G = G[:1, :1].expand_as(G)
        T = torch.tril(G)
        return torch.tril(T @ B.mT), torch.tril(A.mT @ T)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
