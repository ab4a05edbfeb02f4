"""A product with a triangular matrix of ones."""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        steps = x.shape[self.dim]
        ones = torch.ones(steps, steps, dtype=x.dtype, device=x.device).triu()
        return (x.movedim(self.dim, -1) @ ones).movedim(-1, self.dim)
