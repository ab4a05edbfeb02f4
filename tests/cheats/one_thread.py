# ok with --trials 8, below 2x: fewer threads for its own process slow nobody else
import torch
from torch import nn

torch.set_num_threads(1)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
