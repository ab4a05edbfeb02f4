"""Leaves its input alone."""

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.clamp_min(x - 1, 0)
