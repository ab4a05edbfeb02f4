# WRONG, "torch.manual_seed": after each call its caller draws the same numbers
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        torch.manual_seed(0)
        return torch.tril(torch.matmul(A, B))
