"""A convolution and a ReLU."""

import torch

batch_size = 4
channels = 6
size = 17


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, 8, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.rand(batch_size, channels, size, size)]


def get_init_inputs():
    return []
