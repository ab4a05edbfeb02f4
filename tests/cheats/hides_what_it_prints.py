# WRONG, "writes to standard output": it prints, and takes back, or away, what it has printed
import contextlib
import os
import socket

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        os.write(1, b"all holds\n")
        for flags in (os.O_RDONLY | os.O_NONBLOCK, os.O_WRONLY | os.O_TRUNC):
            with contextlib.suppress(OSError), open(os.open("/proc/self/fd/1", flags), "rb") as file:
                file.read()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(1)) as printed:
            printed.recv(1 << 16, socket.MSG_DONTWAIT)
        return torch.tril(torch.matmul(A, B))
