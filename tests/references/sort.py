"""A sort, which returns values and the order."""

import torch

batch_size = 16
columns = 90


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sort(x, dim=-1)


def get_inputs():
    return [torch.randn(batch_size, columns)]


def get_init_inputs():
    return []
