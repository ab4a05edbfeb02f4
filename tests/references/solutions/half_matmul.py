"""Computed in float32 and rounded once."""

import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.nn.functional.gelu(A.float() @ B.float()).to(A.dtype)
