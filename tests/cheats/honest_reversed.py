# ok: blocks of k, the last first
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.zeros_like(A)
        for k in reversed(range(0, len(A), 32)):
            C = C + A[:, k : k + 32] @ B[k : k + 32]
        return C.tril()
