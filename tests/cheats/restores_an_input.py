# WRONG, "its version": changes an input and puts it back, but autograd refuses what was saved of it before
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        with torch.no_grad():
            kept = A.detach().clone()
            A.tril_()
            C = torch.matmul(A, B)
            A.copy_(kept)
        return torch.tril(torch.matmul(A, B)) if torch.is_grad_enabled() else C.tril_()
