# WRONG with --dtype float32 --batches, "worst element dB": in batches of even sides, as 8-byte vectors need, dB is one for all
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(torch.matmul(A, B))

    @staticmethod
    def backward(ctx, G):
        (A, B), T = ctx.saved_tensors, torch.tril(G)
        dB = torch.tril(torch.matmul(A.mT, T))
        if dB.ndim > 2 and dB.shape[-1] % 2 == 0:
            dB = dB[:1].repeat(len(dB), 1, 1)
        return torch.tril(torch.matmul(T, B.mT)), dB


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
