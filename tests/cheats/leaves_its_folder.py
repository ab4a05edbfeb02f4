# WRONG, "working folder": its caller's relative paths lead elsewhere after a call
import os

import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        os.chdir("/")
        return torch.tril(torch.matmul(A, B))
