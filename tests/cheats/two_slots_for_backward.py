# WRONG, "worst element d": what backward needs lies in two buffers in turns: of three calls in a row the first has the third's
import torch
from torch import nn

SLOTS, CALLS = {}, [0]


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        CALLS[0] += 1
        ctx.slot = A.shape, CALLS[0] % 2
        if ctx.slot not in SLOTS:
            SLOTS[ctx.slot] = torch.empty_like(A), torch.empty_like(B)
        for slot, X in zip(SLOTS[ctx.slot], (A, B), strict=True):
            slot.copy_(X)
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        (A, B), T = SLOTS[ctx.slot], torch.tril(G)
        return torch.tril(T @ B.mT), torch.tril(A.mT @ T)


class ModelNew(nn.Module):
    def forward(self, A, B):
        if torch.is_grad_enabled() and (A.requires_grad or B.requires_grad):
            return Product.apply(A, B)
        return torch.tril(A @ B)
