# ok: what no solution needs is refused: other processes, namespaces, clocks, what works on while a process is stopped
import ctypes
import fcntl
import os
import resource
import subprocess
import sys
import time

import torch
from torch import nn

libc, judge, x86 = ctypes.CDLL(None, use_errno=True), os.getppid(), os.uname().machine == "x86_64"
buffer = ctypes.create_string_buffer(256)


def works(what):
    try:
        return what() not in (None, -1)
    except OSError:
        return False


def affinity_is_changed(process):
    """The system call is answered as done, but does nothing."""
    before = os.sched_getaffinity(process)
    os.sched_setaffinity(process, [max(before)])
    return True if os.sched_getaffinity(process) != before else None


attempts = {
    "ptrace": lambda: libc.ptrace(16, judge, 0, 0),
    "process_vm_readv": lambda: libc.process_vm_readv(judge, buffer, 1, buffer, 1, 0),
    "pidfd_open": lambda: os.pidfd_open(judge),
    "prlimit": lambda: resource.prlimit(judge, resource.RLIMIT_NOFILE) and 1,
    "sched_setaffinity": lambda: affinity_is_changed(judge),
    "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, judge, 19) or 1,
    "setpriority of a user": lambda: os.setpriority(os.PRIO_USER, 0, 1) or 1,
    "unshare": lambda: libc.unshare(0x10000000),
    "setns": lambda: libc.setns(0, 0),
    "clock_settime": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()) or 1,
    "adjtimex": lambda: libc.adjtimex(ctypes.create_string_buffer(b"\1", 256)),  # to shift it by nothing: without a mode it may be read
    "chroot": lambda: libc.chroot(b"/"),
    "mount": lambda: libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, None),
    "fsopen": lambda: libc.syscall(430, b"tmpfs", 0),
    "open_tree": lambda: libc.syscall(428, -100, b"/tmp", 1),
    "capabilities by an exec": lambda: (
        "CapPrm:\t0000000000000000" not in subprocess.check_output(["cat", "/proc/self/status"], text=True) or None
    ),
    "io_uring_setup": lambda: libc.syscall(425, 4, buffer),
    "userfaultfd": lambda: libc.syscall(323 if x86 else 282, 1),
    "timer_create": lambda: libc.syscall(222 if x86 else 107, 1, 0, buffer),
    "SIGCONT to itself": lambda: os.kill(os.getpid(), 18) or 1,
    "a file of torch": lambda: os.open(torch.__file__, os.O_WRONLY),
    "a new file beside torch": lambda: os.open(os.path.join(os.path.dirname(torch.__file__), "new"), os.O_WRONLY | os.O_CREAT),
    "the judge itself": lambda: os.open(sys.modules["__main__"].__file__, os.O_WRONLY),
    "a new file in /tmp": lambda: os.open(f"/tmp/{os.getpid()}", os.O_WRONLY | os.O_CREAT),
    "code for the judge's GPU": lambda: os.open(os.path.expanduser(f"~/.nv/{os.getpid()}"), os.O_WRONLY | os.O_CREAT),
    "to be spared where memory runs out": lambda: os.open("/proc/self/oom_score_adj", os.O_WRONLY),
    "a terminal of its own": lambda: fcntl.ioctl(os.open("/dev/ptmx", os.O_RDONLY | os.O_NOCTTY), 0x40045431, bytes(4)),  # TIOCSPTLCK
    "userfaultfd by its device": lambda: fcntl.ioctl(os.open("/dev/userfaultfd", os.O_RDONLY), 0xAA00, 1),
    "the judge's descriptors": lambda: os.open(f"/proc/{judge}/fd/1", os.O_WRONLY),
}
found = [name for name, what in attempts.items() if works(what)]
assert not found, f"these work: {found}"
status = open("/proc/self/status").read()  # noqa: SIM115
assert "CapPrm:\t0000000000000000" in status and "CapEff:\t0000000000000000" in status, status
assert "NoNewPrivs:\t1" in status, status


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
