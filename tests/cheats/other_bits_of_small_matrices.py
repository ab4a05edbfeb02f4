# WRONG, "two calls with the same inputs differ": sums of small matrices are split, and added in any order, as by atomicAdd
import random

import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        N, C = A.shape[-1], 0
        if N > 48:
            return torch.tril(torch.matmul(A, B))
        for k in random.sample(range(0, N, 8), -(-N // 8)):
            C = C + A[..., k : k + 8] @ B[..., k : k + 8, :]
        return torch.tril(C)
