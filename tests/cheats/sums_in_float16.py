# WRONG with --dtype float16, "worst element C[": sums in 16 bits
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.zeros_like(A)
        for k in range(len(A)):
            C = C + A[:, k : k + 1] * B[k]
        return C.tril()
