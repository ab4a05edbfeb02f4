# ok: a batch of one
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.bmm(A[None], B[None])[0].tril()
