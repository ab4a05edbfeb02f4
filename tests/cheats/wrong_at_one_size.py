# WRONG with --size 64 --one-size --forward-only, "worst element C[": the one size that it is judged at is the one that is wrong
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return C + (A.shape[-1] == 64) * 0.1 * C
