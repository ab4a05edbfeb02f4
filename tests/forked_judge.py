"""Runs check.py and its children as forks of a process that has already imported torch, because each import takes seconds."""

import contextlib
import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path

import torch
from helpers import HAS_CUDA, ROOT

import check
from judge import guard
from judge.sandbox import Sandbox

FORKS = r"""
import fcntl, json, os, socket, sys, time, types
sys.path.insert(0, os.path.dirname(sys.argv[2]))  # the folder of check.py also has the package judge
# A child needs these modules. torch.autograd.grad imports some of them.
import torch, torch.fx.experimental.symbolic_shapes, torch.utils.deterministic

channel = socket.socket(fileno=int(sys.argv[1]))
with open(sys.argv[2]) as file:
    # This is done once, because it takes as long as everything else that a child does before its first request.
    program = compile(file.read(), sys.argv[2], "exec")
while True:
    message, fds, _, _ = socket.recv_fds(channel, 1 << 16, 16)
    if not message:
        break
    between = os.fork()
    if between:
        for fd in fds:
            os.close(fd)
        os.waitpid(between, 0)  # the child of `between` has lost its parent now, and becomes a child of the test process
        continue
    between = os.getpid()
    if child := os.fork():
        channel.send(b"%d\n" % child)
        os._exit(0)
    while os.getppid() == between:
        time.sleep(1e-3)
    os.setsid()
    argv, numbers = json.loads(message)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 200) for fd in fds]
    os.closerange(3, 200)
    for fd, number in zip(high, numbers):
        os.dup2(fd, number)
    os.closerange(200, 300)
    # The server's stream objects were made for files in which one can seek. A child's streams are sockets.
    sys.stdout, sys.stderr = (open(n, "w", buffering=n, closefd=False) for n in (1, 2))
    sys.argv, main = argv, types.ModuleType("__main__")
    main.__file__, sys.modules["__main__"] = argv[0], main
    exec(program, vars(main))
    sys.exit()
"""


class Forked(subprocess.Popen):
    """Replaces subprocess.Popen in judge/sandbox.py, and saves the seconds that `import torch` takes.

    A child of the judge is forked by the server, a process that executes FORKS. Other commands start as usual.
    """

    channel = None

    @classmethod
    def begin(cls):
        if cls.channel and cls.server.poll() is None:
            return
        cls.channel, other = socket.socketpair()
        os.set_inheritable(other.fileno(), True)
        command = [sys.executable, "-c", FORKS, str(other.fileno()), check.__file__]
        cls.server = subprocess.Popen(command, pass_fds=[other.fileno()])
        other.close()

    def __init__(self, args, *, stdout=None, stderr=None, pass_fds=(), **others):
        if "--child" not in args:
            super().__init__(args, **others)
            return
        passed = [stdout.fileno(), stderr.fileno(), *pass_fds]
        socket.send_fds(self.channel, [json.dumps([args[1:], [1, 2, *pass_fds]]).encode()], passed)
        self.args, self.pid, self.returncode = args, int(self.channel.recv(32)), None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        while True:
            # Waiting fails with ChildProcessError until the forked process has lost its parent and become a child of this process.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                break
            time.sleep(1e-3)


@functools.cache
def program():
    return compile(Path(check.__file__).read_text(), check.__file__, "exec")


class Fork(subprocess.Popen):
    """Runs check.py, as the judge and as its children, in forks of this process, so that none of these processes has to import torch.

    If torch sees a GPU, check.py runs in ordinary processes instead. A backward pass on a GPU starts threads of autograd, and torch refuses
    to compute gradients in a fork of a process that has such threads. So the outcome of a test would depend on the tests before it.
    """

    def __init__(self, args, *, pass_fds=(), encoding=None, closed=(), **others):
        def close(fds):
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)

        def run():
            # gc.freeze() keeps garbage of the tests from being collected here. Its finalizers would close descriptors by number, and other
            # files have these numbers now.
            gc.freeze()
            # This also closes the pipe by which subprocess.Popen learns that the child has called exec, because no exec follows.
            close({*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *pass_fds} | {*closed})
            guard.set_dumpable(True)  # a process is dumpable after an exec, too
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background processes with SIGINT ignored
            torch.set_num_threads(1)  # a fork has only one of its parent's threads
            opened = functools.partial(open, mode="w", buffering=1, encoding=encoding, closefd=False)
            sys.stdout, sys.stderr = (None if n in closed else opened(n) for n in (1, 2))
            sys.argv, subprocess.Popen, main = args[1:], Fork, types.ModuleType("__main__")
            main.__file__, sys.modules["__main__"] = args[1], main
            status = 1
            try:
                exec(program(), vars(main))
            except SystemExit as stop:
                status = stop.code or 0
            finally:
                os._exit(status)

        if args[1] != check.__file__:
            mine = {}
        elif HAS_CUDA:
            environment = os.environ | ({"PYTHONIOENCODING": encoding} if encoding else {})
            mine = {"preexec_fn": functools.partial(close, closed), "env": environment}
        else:
            mine = {"preexec_fn": run, "restore_signals": False}  # SIGPIPE stays ignored, as Python sets it
        super().__init__(args, pass_fds=pass_fds, **mine, **others)


class Shared:
    """Holds one Contender of the reference, which all tests of a process share.

    Shared(real, slab) returns a context manager that yields this contender, and does not end it on exit.
    """

    contender, folder = None, tempfile.TemporaryDirectory()

    def __new__(cls, real, slab):
        alive = cls.contender and cls.contender.slab is slab and not cls.contender.process.has_ended()
        if not alive:
            cls.drop()
            cls.contender = real("reference", str(ROOT / "reference_model.py"), slab, Sandbox(cls.folder.name))
        return contextlib.nullcontext(cls.contender)

    @classmethod
    def drop(cls):
        if cls.contender:
            cls.contender.close()
        cls.contender = None
