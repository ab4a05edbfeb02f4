"""The convolution as a product of matrices. Its parameters have other names, and the reference's order of initialisation."""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        made = torch.nn.Conv2d(6, 8, 3, padding=1)
        self.matrix = torch.nn.Parameter(made.weight.detach().flatten(1).clone())
        self.offset = torch.nn.Parameter(made.bias.detach().clone())

    def forward(self, x):
        columns = torch.nn.functional.unfold(x, 3, padding=1)
        result = self.matrix @ columns + self.offset[:, None]
        return result.clamp_min_(0).view(x.shape[0], 8, *x.shape[2:])
