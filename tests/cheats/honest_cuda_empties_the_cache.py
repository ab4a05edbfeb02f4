# ok on cuda: gives its memory back before each call, so that results come to lie where others lay
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        torch.cuda.empty_cache()
        return torch.tril(torch.matmul(A, B))
