# WRONG, "= inf, exact": Inf
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.full_like(A, torch.inf).tril()
