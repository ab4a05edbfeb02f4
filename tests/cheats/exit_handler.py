# WRONG, "ends with status 0": an exit handler that says success, and an end by the back door
import atexit
import os

from torch import nn

atexit.register(print, "all holds: no question")


class ModelNew(nn.Module):
    def forward(self, A, B):
        os._exit(0)
