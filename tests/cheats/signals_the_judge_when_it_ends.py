# ok: children that would be the judge's, and asynchronous signals to it; each is refused
import contextlib
import ctypes
import fcntl
import os
import struct

import torch
from torch import nn

libc, judge = ctypes.CDLL(None), os.getppid()
clone, clone3 = {"x86_64": 56, "aarch64": 220}[os.uname().machine], 435
for flags in (0x8000 | 9, 0x8000 | 19, 9, 0x10000000 | 17):  # CLONE_PARENT and SIGKILL or SIGSTOP; no SIGCHLD; CLONE_NEWUSER
    if (pid := libc.syscall(clone, flags, 0, 0, 0, 0)) == 0:
        os._exit(0)
    assert pid == -1, f"clone({flags:#x}) works"
if (pid := libc.syscall(clone3, struct.pack("8Q", 0x8000, 0, 0, 0, 19, 0, 0, 0), 64)) == 0:
    os._exit(0)
assert pid == -1, "clone3 works"
read, write = os.pipe()
for command, argument in ((fcntl.F_SETOWN, judge), (fcntl.F_SETSIG, 9), (15, struct.pack("ii", 1, judge))):
    with contextlib.suppress(OSError):
        fcntl.fcntl(read, command, argument)
        raise AssertionError(f"fcntl {command} works")
fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
os.write(write, b"x")


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
