# WRONG with --dtype float32, "worst element dA": a contiguous dC as fixed point numbers, scaled by rows; any other by torch
import torch
from torch import nn


def fixed(X):
    unit = X.abs().amax(-1, keepdim=True).double().clamp_min(1e-300) * 2.0**-36
    return torch.round(X.double() / unit) * unit


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(torch.matmul(A, B))

    @staticmethod
    def backward(ctx, G):
        (A, B), T = ctx.saved_tensors, torch.tril(G)
        wide = fixed(T) if G.is_contiguous() else T.double()
        return torch.tril(torch.matmul(wide, B.mT.double())).to(A.dtype), torch.tril(torch.matmul(A.mT, T))


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
