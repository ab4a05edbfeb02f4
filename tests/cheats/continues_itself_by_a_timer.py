# ok: a timer that would send SIGCONT while the process is stopped, and a child's end that would
import ctypes
import os
import struct

import torch
from torch import nn

libc = ctypes.CDLL(None)
timer, event = ctypes.c_void_p(), ctypes.create_string_buffer(struct.pack("QiiQ", 0, 18, 0, 0) + bytes(40))
if libc.timer_create(1, event, ctypes.byref(timer)) == 0:
    libc.timer_settime(timer, 0, struct.pack("4q", 0, 100_000, 0, 100_000), None)
    raise AssertionError("timer_create works")
if not os.fork():
    libc.prctl(1, 18)  # PR_SET_PDEATHSIG
    os._exit(0)
os.wait()


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
