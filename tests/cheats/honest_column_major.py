# ok: a transposed result, dense but not contiguous
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.triu(torch.matmul(B.mT, A.mT)).mT
