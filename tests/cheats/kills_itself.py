# WRONG, "is killed by signal 9,": kill -9 of itself in the 20th call
import os
import signal

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, A, B):
        self.calls += 1
        if self.calls == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tril(torch.matmul(A, B))
