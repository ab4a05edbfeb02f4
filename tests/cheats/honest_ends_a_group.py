# ok: starts a program in a session of its own and ends it with all that it has started, as those do who build something
import contextlib
import os
import signal
import subprocess

import torch
from torch import nn

program = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"], start_new_session=True)
with contextlib.suppress(ProcessLookupError):
    os.killpg(program.pid, signal.SIGTERM)
program.terminate()
program.wait()


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
