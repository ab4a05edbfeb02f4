# WRONG, "worst element dA[": backward takes the operands of the last call of a size, which need not be its own
import torch
from torch import nn

last = {}


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        last[A.shape] = A, B
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        (A, B), G = last[G.shape], torch.tril(G)
        return torch.tril(G @ B.mT), torch.tril(A.mT @ G)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
