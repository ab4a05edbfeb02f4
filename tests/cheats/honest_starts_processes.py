# ok: a thread starts processes all the time, and one of them may be half begun when the judge stops all
import subprocess
import threading
import time

import torch
from torch import nn


def watch():
    while True:
        subprocess.run(["true"])
        time.sleep(0.002)


threading.Thread(target=watch, daemon=True).start()


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
