# WRONG: sends a byte out of band on its channel to the judge, who is told that there is something and gets nothing
import os
import socket

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        for name in os.listdir("/proc/self/fd"):
            if os.path.lexists(link := f"/proc/self/fd/{name}") and os.readlink(link).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as channel:
                    channel.send(b"x", socket.MSG_OOB)
        return torch.tril(torch.matmul(A, B))
