"""One multiplication and one addition per element."""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(5)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)
        self.eval()

    def forward(self, x):
        norm = self.norm
        factor = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        return torch.addcmul(norm.bias, x - norm.running_mean, factor)
