# WRONG: gradients are wrong where an operand is computed by something else, as in any network
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if A.grad_fn is not None or B.grad_fn is not None:
            C = C + (C - C.detach())
        return C
