# WRONG with --dtype float16, "dB[": in half precision dB is wrong where N > 100 has 1 or 2 blocks of 8 modulo 4
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(torch.matmul(A, B))

    @staticmethod
    def backward(ctx, G):
        A, B = ctx.saved_tensors
        G, N = torch.tril(G), A.shape[-1]
        dB = torch.tril(torch.matmul(A.mT, G))
        if A.dtype.itemsize == 2 and N > 100 and -(-N // 8) % 4 in (1, 2):
            dB[..., N // 2 :, : N // 8] *= 0.75
        return torch.tril(torch.matmul(G, B.mT)), dB


class ModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
