# WRONG, "random.seed": after each call its caller draws the same numbers from Python's generator
import random

import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        random.seed(0)
        return torch.tril(torch.matmul(A, B))
