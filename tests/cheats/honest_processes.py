# ok: what its own descendants need goes on working: abort in a fork, a timeout that kills, threads, a session of their own, files
import os
import signal
import subprocess
import sys
import tempfile
import threading

import torch
from torch import nn

if not (pid := os.fork()):
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()
assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGABRT
try:
    subprocess.run(["sleep", "60"], timeout=0.05, start_new_session=True)
    raise AssertionError("sleep was not ended")
except subprocess.TimeoutExpired:
    child = subprocess.Popen(["sleep", "60"])
    child.terminate()
    assert child.wait() == -signal.SIGTERM
with tempfile.TemporaryDirectory() as folder:
    open(f"{folder}/a", "w").close()
    os.makedirs(f"{folder}/b")
    os.replace(f"{folder}/a", f"{folder}/b/c")
done = []
thread = threading.Thread(target=done.append, args=(os.sched_getaffinity(0),))
thread.start()
thread.join()
os.sched_setaffinity(0, done[0])
print("all that is wanted works", file=sys.stderr)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
