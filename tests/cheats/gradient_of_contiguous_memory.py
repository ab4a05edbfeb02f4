# WRONG, "gradients inputs": dC is read by its address alone, as a kernel does; after C.sum().backward() one number stands there
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        (A, B), G = ctx.saved_tensors, torch.as_strided(G, G.shape, (G.shape[-1], 1)).tril()
        return torch.tril(G @ B.mT), torch.tril(A.mT @ G)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
