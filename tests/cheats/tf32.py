# WRONG, "worst element C[": inputs rounded to the 10 bits of TF32
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        A, B = (((X.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for X in (A.detach(), B.detach()))
        return torch.tril(torch.matmul(A, B))
