"""One multiplication and one addition per element."""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(5)

    def forward(self, x):
        norm, mean, variance = self.norm, self.norm.running_mean, self.norm.running_var
        if self.training:
            number = x.numel() // x.shape[1]
            mean = x.mean((0, 2, 3))
            variance = ((x - mean[:, None, None]) ** 2).mean((0, 2, 3))
            norm.running_mean.lerp_(mean.detach(), norm.momentum)
            norm.running_var.lerp_(variance.detach() * number / (number - 1), norm.momentum)
            norm.num_batches_tracked += 1
        factor = norm.weight * torch.rsqrt(variance + norm.eps)
        return (x - mean[:, None, None]) * factor[:, None, None] + norm.bias[:, None, None]
