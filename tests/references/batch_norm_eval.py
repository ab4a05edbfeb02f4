"""A batch norm in evaluation mode from its constructor on, with statistics of its own."""

import torch

batch_size = 16
channels = 5


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(channels)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)
        self.eval()

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(batch_size, channels)]


def get_init_inputs():
    return []
