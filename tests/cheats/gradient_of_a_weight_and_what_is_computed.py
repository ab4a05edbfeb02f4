# WRONG, "worst element d": wrong gradients of a parameter and of what is computed from others, as of a network's later layers
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if A.requires_grad and B.requires_grad and A.is_leaf != B.is_leaf:
            C = C + (C - C.detach())
        return C
