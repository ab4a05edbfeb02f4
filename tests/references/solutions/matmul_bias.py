"""The sum over the features in two halves, the second one first."""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = torch.nn.Linear(in_features, out_features)

    def forward(self, x):
        weight, half = self.linear.weight, x.shape[-1] // 2
        return x[:, half:] @ weight[:, half:].T + x[:, :half] @ weight[:, :half].T + self.linear.bias
