# WRONG, "torch.set_default_dtype": what its caller makes from now on is float64
import torch

torch.set_default_dtype(torch.float64)


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
