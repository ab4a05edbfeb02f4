"""Max pooling, which returns values and where they stood."""

import torch

batch_size = 3
channels = 4
size = 12


class Model(torch.nn.Module):
    def forward(self, x):
        values, indices = torch.nn.functional.max_pool2d(x, 3, stride=2, return_indices=True)
        return {"values": values, "indices": indices}


def get_inputs():
    return [torch.randn(batch_size, channels, size, size)]


def get_init_inputs():
    return []
