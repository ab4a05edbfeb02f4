# WRONG, "hooks of saved tensors": what its caller's graphs save goes through its own functions
import torch
from torch import nn

torch._C._autograd._push_saved_tensors_default_hooks(lambda X: X, lambda X: X)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
