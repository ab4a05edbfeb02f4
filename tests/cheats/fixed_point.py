# WRONG, "over 16": A as fixed point numbers of 40 bits, more than enough for ordinary inputs
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        unit = A.double().abs().max() * 2.0**-40
        return torch.tril((A.double() / unit).round() * unit @ B.double()).float()
