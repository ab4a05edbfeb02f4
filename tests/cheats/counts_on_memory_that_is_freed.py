# WRONG: reuses memory of results that nobody holds, where it takes the upper triangle to be zero still; the last owner wrote there
import weakref

import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.free = {}

    def forward(self, A, B):
        if torch.is_grad_enabled() and (A.requires_grad or B.requires_grad):
            return torch.tril(torch.matmul(A, B))
        A, B = A.detach(), B.detach()
        free = self.free.setdefault((A.shape, A.dtype), [])
        buffer = free.pop() if free else torch.zeros(A.shape, dtype=A.dtype)
        C = buffer.view(buffer.shape)
        weakref.finalize(C, free.append, buffer)
        N = A.shape[-1]
        step = max(1, -(-N // 4))
        for i in range(0, N, step):
            e = min(N, i + step)
            if i:
                torch.mm(A[i:e, :e], B[:e, :i], out=C[i:e, :i])
            C[i:e, i:e] = torch.tril(A[i:e, i:e] @ B[i:e, i:e])
        return C
