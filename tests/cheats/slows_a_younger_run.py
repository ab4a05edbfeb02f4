# ok: the affinity, priority, policy and limits of a younger process are out of reach; a descendant stands for another run's process
import contextlib
import os
import resource
import time

import torch

younger = os.fork()
if not younger:
    time.sleep(600)
    os._exit(0)
attempts = {
    "sched_setaffinity": lambda: os.sched_setaffinity(younger, [min(os.sched_getaffinity(0))]),
    "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, younger, 19),
    "sched_setscheduler": lambda: os.sched_setscheduler(younger, os.SCHED_IDLE, os.sched_param(0)),
    "sched_setparam": lambda: os.sched_setparam(younger, os.sched_param(0)),
    "prlimit": lambda: resource.prlimit(younger, resource.RLIMIT_NOFILE, (0, 0)),
}


def state():
    process = (os.sched_getaffinity(younger), os.getpriority(os.PRIO_PROCESS, younger), os.sched_getscheduler(younger))
    with open(f"/proc/{younger}/limits") as limits:
        return process, limits.read()


before = state()
for attempt in attempts.values():
    with contextlib.suppress(OSError):
        attempt()
assert state() == before, "a younger process was reached"
os.kill(younger, 9)
os.waitpid(younger, 0)
# What a process may do to itself goes on working, by 0 and by its own id.
for own in (0, os.getpid()):
    os.sched_setaffinity(own, os.sched_getaffinity(own))
    os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own))
    resource.prlimit(own, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
