# ok: a thread that never rests would slow the reference down, if it ran beside it
import threading

import torch
from torch import nn


def work():
    while True:
        pass


threading.Thread(target=work, daemon=True).start()


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
