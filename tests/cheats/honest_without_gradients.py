# ok: it records gradients only where an input asks for one
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        with torch.set_grad_enabled(A.requires_grad or B.requires_grad):
            return torch.tril(torch.matmul(A, B))
