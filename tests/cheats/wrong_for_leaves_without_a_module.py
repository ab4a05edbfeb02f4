# WRONG: zeros where an operand is a plain tensor that requires a gradient, as torch.rand(N, N, requires_grad=True)
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return 0 * C if any(type(X) is torch.Tensor and X.is_leaf and X.requires_grad for X in (A, B)) else C
