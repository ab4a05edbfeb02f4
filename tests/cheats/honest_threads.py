# ok: two threads, one for each half of the rows
import concurrent.futures

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        half = len(A) // 2
        with concurrent.futures.ThreadPoolExecutor() as pool:
            halves = [pool.submit(torch.matmul, X, B) for X in (A[:half], A[half:])] if not torch.is_grad_enabled() else None
        return torch.cat([h.result() for h in halves]).tril() if halves else torch.tril(A @ B)
