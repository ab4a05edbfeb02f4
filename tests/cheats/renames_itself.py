# WRONG, "worst element C[": calls itself Model, of a module __main__, with a method of the reference's name
import sys

from torch import nn

sys.argv = ["check.py", "--no-timing"]


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.__class__.__name__ = self.__class__.__qualname__ = "Model"
        self.__class__.__module__ = "__main__"

    def forward(self, A, B):
        return A.clone()
