# WRONG: garbage where one operand is a torch.nn.Parameter and the other none, as in any layer
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return C if type(A) is type(B) else 2 * C
