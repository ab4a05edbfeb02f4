"""A linear layer and a dropout, which draws random numbers in training mode."""

import torch

batch_size = 20
features = 30


class Model(torch.nn.Module):
    def __init__(self, probability):
        super().__init__()
        self.linear = torch.nn.Linear(features, features)
        self.dropout = torch.nn.Dropout(probability)

    def forward(self, x):
        return self.dropout(self.linear(x))


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [0.3]
