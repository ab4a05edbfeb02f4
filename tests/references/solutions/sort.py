"""The order first, the values by it. Equal elements may stand in another order than the reference's."""

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        order = torch.argsort(x.flip(-1), dim=-1)
        order = x.shape[-1] - 1 - order
        return x.gather(-1, order), order
