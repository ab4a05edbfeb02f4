# WRONG, "is killed by signal 11,": reads address 0
import ctypes

from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        ctypes.string_at(0)
