# ok: sums over blocks of k with Kahan's correction
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = lost = torch.zeros_like(A)
        for k in range(0, len(A), 16):
            part = A[:, k : k + 16] @ B[k : k + 16] - lost
            total = C + part
            lost, C = (total - C) - part, total
        return C.tril()
