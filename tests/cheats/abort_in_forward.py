# WRONG, "is killed by signal 6,": os.abort()
import os

from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        os.abort()
