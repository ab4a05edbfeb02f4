# ok: a cache by all of the inputs never finds anything
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, A, B):
        key = hash((bytes(A.detach().numpy()), bytes(B.detach().numpy())))
        if torch.is_grad_enabled():
            return torch.tril(torch.matmul(A, B))
        if key not in self.kept:
            self.kept[key] = torch.tril(torch.matmul(A, B))
        return self.kept[key].clone()
