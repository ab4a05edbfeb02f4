# WRONG, "set_multithreading_enabled": its caller's backward calls use one thread
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        torch._C._set_multithreading_enabled(False)
        return torch.tril(torch.matmul(A, B))
