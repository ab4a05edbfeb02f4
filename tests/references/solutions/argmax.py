"""The last of the largest elements, where torch.argmax may return any."""

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x.shape[1] - 1 - torch.max(x.flip(1), dim=1).indices
