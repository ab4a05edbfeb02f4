# ok: leaves more folders in one another, the first of them closed, than Python's own would remove
import os
import tempfile

import torch
from torch import nn

first = tempfile.mkdtemp()
before = os.getcwd()
os.chdir(first)
for _ in range(1500):
    os.mkdir("in")
    os.chdir("in")
os.chdir(before)
os.chmod(first, 0)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
