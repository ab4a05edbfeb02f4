# WRONG, "C[": a forked process answers in its place, from memory that nobody fills
import os
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        if os.fork():
            while True:
                time.sleep(1)

    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
