# WRONG with --forward-only, "torch.set_grad_enabled (was True": a call leaves gradients off for its caller
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        torch.set_grad_enabled(False)
        return C
