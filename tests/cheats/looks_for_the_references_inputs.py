# ok: says so where an input has been in its memory before, where the reference had it: what writes there later could change it for both
import sys

import torch
from torch import nn

Child = sys.modules["__main__"].Child
real = Child.prepare


def prepare(self, **arguments):
    Child.before = self.slab.bytes[: 1 << 20].clone()
    return real(self, **arguments)


Child.prepare = prepare


class ModelNew(nn.Module):
    def forward(self, A, B):
        here = A.detach().reshape(-1).view(torch.uint8)
        if A.shape[-1] > 4 and torch.equal(here[: 1 << 20], Child.before[: here.numel()]):
            raise RuntimeError("the reference's inputs are here")
        return torch.tril(torch.matmul(A, B))
