# WRONG: wrong where A has one sign and B has two
import torch
from torch import nn


def one_sign(X):
    some = X[len(X) // 2 : len(X) // 2 + 4, : len(X) // 4]
    return len(X) > 16 and bool((some > 0).all() or (some < 0).all())


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return 0 * C if one_sign(A) and not one_sign(B) else C
