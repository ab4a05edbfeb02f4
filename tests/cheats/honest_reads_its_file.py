# ok: KernelBench imports Triton's files from a temporary one: it has a name, and its own text and its folder can be used
import os
from pathlib import Path

import torch
from torch import nn

assert __name__ != "__main__"
TEXT = Path(__file__).read_text()
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "build")
os.makedirs(FOLDER)


class ModelNew(nn.Module):
    def forward(self, A, B):
        assert "class ModelNew" in TEXT
        return torch.tril(torch.matmul(A, B))
