# WRONG, "the input B is modified": the last bit of one element
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        B.detach().view(torch.int32)[-1, 0] ^= 1
        return C
