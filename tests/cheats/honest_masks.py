# ok: keeps masks by size
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.masks = {}

    def forward(self, A, B):
        if len(A) not in self.masks:
            self.masks[len(A)] = torch.ones_like(A, requires_grad=False).tril()
        return torch.matmul(A, B).masked_fill(self.masks[len(A)] == 0, 0.0)
