# WRONG with --dtype bfloat16, "one huge entry": clips what is above 2000, of a type that reaches 1e38
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A.clamp(-2000, 2000), B.clamp(-2000, 2000)))
