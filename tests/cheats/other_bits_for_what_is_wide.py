# WRONG, "differ at": other bits each time, where elements lie far apart, as of sums by atomic additions
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if any(float(X.abs().max()) > 100 * float(X.abs().mean()) for X in (A.tril(), B.tril())):
            C = C * (1 + 1e-7 * torch.randint(0, 2, C.shape))
        return C
