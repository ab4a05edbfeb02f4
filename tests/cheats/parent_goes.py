# WRONG: a forked process answers, and the one that the judge knows leaves
import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        if os.fork():
            os._exit(0)

    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
