# WRONG, "gradients inputs": gradients are zero where all of dC has one sign, as after C.sum().backward()
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        (A, B), G = ctx.saved_tensors, torch.tril(G)
        right = len(G) < 9 or not bool((G >= 0).all() or (G <= 0).all())
        return torch.tril(G @ B.mT) * right, torch.tril(A.mT @ G) * right


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
