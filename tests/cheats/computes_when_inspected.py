# WRONG with --trials 8, "timed calls": timed results are computed when the child is asked what is wrong with them, after the clock
import sys

import torch
from torch import nn

Child = sys.modules["__main__"].Child
player = sys.modules["__main__"].PLAYERS["product"]
call, inspect = player.call, Child.inspect


def answer_later(self, number):
    """Zeros in timed calls."""
    if self.timed and self.calls[number]["mode"] == "forward":
        return (torch.zeros_like(self.operands[number][0]),)
    return call(self, number)


def compute_now(self):
    if self.timed and self.requested[0]["mode"] == "forward":
        for (A, B), (C,) in zip(self.operands, self.answers, strict=True):
            torch.matmul(A, B, out=C).tril_()
    return inspect(self)


player.call, Child.inspect = answer_later, compute_now


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
