# WRONG with --size 400, "worst element C[": beyond 300, A is rounded to 40 bits below its largest element
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        if len(A) > 300:
            unit = A.double().abs().max() * 2.0**-40
            return torch.tril((A.double() / unit).round() * unit @ B.double()).float()
        return torch.tril(torch.matmul(A, B))
