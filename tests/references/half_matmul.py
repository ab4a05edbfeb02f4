"""A product of 16-bit matrices and a GELU."""

import torch

rows = 32
inner = 64
columns = 48


class Model(torch.nn.Module):
    def forward(self, A, B):
        return torch.nn.functional.gelu(A @ B)


def get_inputs():
    return [torch.randn(rows, inner, dtype=torch.bfloat16), torch.randn(inner, columns, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
