# ok: traces its function in the first call of each shape, as a compiler at run time does
import functools

import torch
from torch import nn


@functools.lru_cache
def traced(shape, dtype):
    zeros = torch.zeros(shape, dtype=dtype)
    return torch.jit.trace(lambda A, B: torch.tril(torch.matmul(A, B)), (zeros, zeros), check_trace=False)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return traced(A.shape, A.dtype)(A, B)
