# ok: a handler of SIGCONT
import signal

import torch
from torch import nn

signal.signal(signal.SIGCONT, lambda *_: None)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
