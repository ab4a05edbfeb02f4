# WRONG, ", gradients inputs": for backward it keeps where the operands lie and not the operands, whose memory may be another's by then
import ctypes

import torch


def matrix(address, like):
    memory = (ctypes.c_char * (like.numel() * like.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.addresses = A.data_ptr(), B.data_ptr()
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        A, B = (matrix(address, G) for address in ctx.addresses)
        return torch.tril(torch.tril(G) @ B.mT), torch.tril(A.mT @ torch.tril(G))


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
