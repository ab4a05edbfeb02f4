# WRONG, "worst element d": wrong gradients where one operand alone has one and is a parameter, as of a network's first layer
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if A.requires_grad != B.requires_grad and A.is_leaf and B.is_leaf:
            C = C + (C - C.detach())
        return C
