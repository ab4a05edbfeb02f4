# WRONG, "the input A is modified": the result lies where the input was
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return A.detach().copy_(torch.tril(torch.matmul(A.detach(), B.detach())))
