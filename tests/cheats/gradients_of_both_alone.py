# WRONG, "worst element dA[": gradients are zero where but one operand has one
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        (A, B), G, both = ctx.saved_tensors, torch.tril(G), all(ctx.needs_input_grad)
        return torch.tril(G @ B.mT) * both, torch.tril(A.mT @ G) * both


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
