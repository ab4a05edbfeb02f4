# ok: sleeps
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        time.sleep(2e-3)
        return torch.tril(torch.matmul(A, B))
