# ok: einsum
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.einsum("ik,kj->ij", A, B).tril()
