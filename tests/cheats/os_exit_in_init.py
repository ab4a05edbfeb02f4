# WRONG, "ends with status 0 while it is loaded": in the constructor
import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        os._exit(0)

    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
