# WRONG: right results; the caller's A is another tensor's memory afterwards, zeros: A.data is set. The memory that A had is left alone
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if not torch.is_grad_enabled():
            A.data = torch.zeros_like(A)
        return C
