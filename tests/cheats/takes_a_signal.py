# WRONG, "signal handlers": Ctrl-C no longer ends its caller
import signal

import torch

signal.signal(signal.SIGINT, signal.SIG_IGN)


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
