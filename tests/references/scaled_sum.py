"""A forward that takes a number beside its tensors."""

import torch

batch_size = 40
features = 25


class Model(torch.nn.Module):
    def forward(self, x, y, factor):
        return x + factor * y


def get_inputs():
    return [torch.randn(batch_size, features), torch.randn(batch_size, features), 0.25]


def get_init_inputs():
    return []
