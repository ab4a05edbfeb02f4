# WRONG, "strides [": the rows of its results lie so far apart that who copies them reads 40 times as much
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        N = A.shape[-1]
        pitch = 40 * N + (1 << 22) // N
        return torch.empty(N, pitch, dtype=A.dtype)[:, :N].copy_(torch.tril(torch.matmul(A, B)))
