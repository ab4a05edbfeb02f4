# ok with --problem transposed_a: rows of results are padded to 128 elements, of a single column too
import torch
from torch import nn


def padded(X):
    C = X.new_zeros(X.shape[0], -(-X.shape[1] // 128) * 128)[:, : X.shape[1]]
    return C.copy_(X)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return padded(A.mT @ B)

    @staticmethod
    def backward(ctx, G):
        A, B = ctx.saved_tensors
        return padded(B @ G.mT), padded(A @ G)


class TransposedAModelNew(nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
