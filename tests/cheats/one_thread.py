# WRONG, "torch.set_num_threads": its caller computes with another number of threads from now on
import torch
from torch import nn

torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
