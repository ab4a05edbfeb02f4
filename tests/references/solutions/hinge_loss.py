"""A sum and a division."""

import torch


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return torch.relu(1 - targets * predictions).sum() / predictions.numel()
