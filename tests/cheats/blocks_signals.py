# WRONG, "blocked signals": its caller cannot be interrupted
import signal

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        return torch.tril(torch.matmul(A, B))
