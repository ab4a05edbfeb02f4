# WRONG, "worst element d": 1e30 where the masks cover the gradients
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        (A, B), T = ctx.saved_tensors, torch.tril(G)
        dA, dB = torch.tril(T @ B.mT), torch.tril(A.mT @ T)
        return dA + torch.full_like(dA, 1e30).triu(1), dB + torch.full_like(dB, 1e30).triu(1)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
