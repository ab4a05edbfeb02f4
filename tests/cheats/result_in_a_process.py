# WRONG, "worst element C[": a process in a session of its own fills shared memory later
import os
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.zeros_like(A).share_memory_()
        if not os.fork():
            os.setsid()
            time.sleep(0.2)
            C.detach().copy_(torch.tril(torch.matmul(A, B)))
            os._exit(0)
        return C
