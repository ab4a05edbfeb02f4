# ok: it reads an input from where its storage begins, as extensions do that take a storage's pointer
import ctypes

import torch
from torch import nn


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X):
        copy = torch.empty_like(X)
        ctypes.memmove(copy.data_ptr(), X.untyped_storage().data_ptr(), X.nbytes)
        return copy

    @staticmethod
    def backward(ctx, G):
        return G


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(Copied.apply(A.contiguous()), Copied.apply(B.contiguous())))
