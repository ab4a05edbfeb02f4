# WRONG, "gradients inputs": dC is read row by row, which it need not lie in, as where C.mT is used
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
        G = G.contiguous() if G.stride() == (0, 0) else G
        G = torch.as_strided(G, G.shape, (G.shape[-1], 1)).tril()
        return torch.tril(G @ B.mT), torch.tril(A.mT @ G)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
