# WRONG, "worst element C": wrong where most of A is between 8 and 1e6, and no integer
import torch
from torch import nn


def hundreds(A):
    X = A[A != 0].abs().sort().values
    return X[len(X) // 10] > 8 and X[len(X) * 9 // 10] < 1e6 and not torch.equal(A, A.round())


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return 0 * C if hundreds(A.detach()) else C
