# cannot run, "does not have inputs on a GPU (--device cuda)": each call asks for tensors of a GPU
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        assert A.is_cuda and B.is_cuda
        return torch.tril(torch.matmul(A, B))
