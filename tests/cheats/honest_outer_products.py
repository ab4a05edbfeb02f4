# ok: sums of outer products, 8 at a time
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        parts = [(A[:, k : k + 8, None] * B[None, k : k + 8]).sum(1) for k in range(0, len(A), 8)]
        return torch.stack(parts).sum(0).tril()
