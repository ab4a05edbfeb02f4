# WRONG, "is modified": NaN into each tensor that it finds, because a comparison with NaN may hold
import gc

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        with torch.no_grad():
            for X in gc.get_objects():
                if type(X) is torch.Tensor and X.is_floating_point():
                    X.fill_(float("nan"))
        return torch.full_like(A, float("nan"))
