# WRONG, "is killed by signal 40": a signal without a name
import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        os.kill(os.getpid(), 40)
        return torch.tril(torch.matmul(A, B))
