"""The mask is drawn as torch draws it, and multiplied with the scale."""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, probability):
        super().__init__()
        self.linear = torch.nn.Linear(30, 30)
        self.probability = probability

    def forward(self, x):
        result = torch.addmm(self.linear.bias, x, self.linear.weight.T)
        if not self.training:
            return result
        return result * torch.nn.functional.dropout(torch.ones_like(result), self.probability)
