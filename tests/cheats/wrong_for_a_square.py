# WRONG, "worst element C[": takes A @ A for A @ A^T, where both operands are the same tensor
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.tril(A @ A.mT) if A is B else torch.tril(A @ B)
