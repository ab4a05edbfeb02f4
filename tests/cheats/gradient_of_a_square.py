# WRONG, "worst element dA[": where one tensor is both operands, the gradient lacks the second of its two terms
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.tril(A @ (B.detach() if A is B else B))
