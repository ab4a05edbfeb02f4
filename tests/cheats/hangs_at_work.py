# WRONG with --timeout 0.5, "hangs: no answer within": loops for ever in the 20th call
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, A, B):
        self.calls += 1
        while self.calls == 20:
            pass
        return torch.tril(torch.matmul(A, B))
