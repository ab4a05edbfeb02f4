# WRONG, "the solution raises ValueError: no such luck (raises.py, line 7)": in a call
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        raise ValueError("no such luck")
