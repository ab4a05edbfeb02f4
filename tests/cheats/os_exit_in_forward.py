# WRONG, "ends with status 0": it leaves the process as if all were well
import os

from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        os._exit(0)
