# WRONG: right results; the caller's A is transposed in place afterwards (its strides, not its memory)
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if not torch.is_grad_enabled():
            A.transpose_(-1, -2)
        return C
