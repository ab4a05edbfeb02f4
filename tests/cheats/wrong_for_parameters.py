# WRONG: garbage where an operand is a torch.nn.Parameter, as weights are
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return C if type(A) is type(B) is torch.Tensor else 2 * C
