# WRONG with --seed 1, "worst element d": no gradients below 1e-6, where those of C.mean() are
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
        if bool((G.abs() < 1e-6).all()):
            dA, dB = 0 * dA, 0 * dB
        return dA, dB


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
