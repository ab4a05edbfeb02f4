# WRONG, "worst element C[": a result's memory is free once its tensor object is gone, although a view of it lives on
import weakref

import torch
from torch import nn

FREE = {}


class ModelNew(nn.Module):
    def forward(self, A, B):
        if torch.is_grad_enabled() and (A.requires_grad or B.requires_grad) or A.ndim != 2:
            return torch.tril(torch.matmul(A, B))
        free = FREE.setdefault((A.shape, A.dtype), [])
        buffer = free.pop() if free else torch.empty_like(A)
        with torch.no_grad():
            torch.matmul(A.detach(), B.detach(), out=buffer)
            buffer.tril_()
        C = buffer.view(buffer.shape)
        weakref.finalize(C, free.append, buffer)
        return C
