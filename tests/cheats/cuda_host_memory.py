# WRONG on cuda, "device is cpu": a result on the CPU
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B)).cpu()
