# WRONG, "raises SystemExit": sys.exit(0) in a call
import sys

from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        sys.exit(0)
