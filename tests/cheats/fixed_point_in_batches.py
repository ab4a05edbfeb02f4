# WRONG with --dtype float32 --batches: batches alone as fixed point numbers of 40 bits, more than enough for ordinary inputs
import torch
from torch import nn


def fixed(X):
    unit = X.tril().abs().amax((-2, -1), keepdim=True).double().clamp_min(1e-300) * 2.0**-40
    return (torch.round(X.double() / unit) * unit).float()


class ModelNew(nn.Module):
    def forward(self, A, B):
        if A.ndim > 2 and not torch.is_grad_enabled():
            A, B = fixed(A), fixed(B)
        return torch.tril(torch.matmul(A, B))
