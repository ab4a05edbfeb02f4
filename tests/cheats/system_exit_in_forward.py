# WRONG, "raises SystemExit": and in the 30th call only
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, A, B):
        self.calls += 1
        if self.calls == 30:
            raise SystemExit
        return torch.tril(torch.matmul(A, B))
