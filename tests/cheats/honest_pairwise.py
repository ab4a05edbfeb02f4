# ok: pairwise sums
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        return self.product(A, B).tril()

    def product(self, A, B):
        half = len(B) // 2
        return A @ B if half < 8 else self.product(A[:, :half], B[:half]) + self.product(A[:, half:], B[half:])
