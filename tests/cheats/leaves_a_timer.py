# WRONG, "running timers": a signal ends its caller ten hours later
import signal

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        signal.setitimer(signal.ITIMER_REAL, 36000)
        return torch.tril(torch.matmul(A, B))
