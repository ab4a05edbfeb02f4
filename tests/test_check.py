"""What holds of check.py: each file of tests/cheats gets the verdict that its first line names, and options, exit status, record and
exported files are as its manual says.

A cheat's first line reads `# VERDICT [on cuda] [with OPTIONS][, below Rx][, "finding"]: why`. VERDICT is ok, WRONG, or `cannot run` (exit
status 2); the finding is a part of what check.py prints; the ratio is what it may certify at most, and only then calls are timed.

CHECK_SEEDS=100 python -m pytest tests/test_check.py -k honest       judges the honest files with so many seeds
"""

import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import helpers
import pytest
import torch

ROOT = helpers.ROOT
CHEATS = sorted((Path(__file__).parent / "cheats").glob("*.py"))
SEEDS = int(os.environ.get("CHECK_SEEDS", "1"))

spec = importlib.util.spec_from_file_location("check", ROOT / "check.py")
check = importlib.util.module_from_spec(spec)
sys.modules["check"] = check  # dataclasses look their module up
spec.loader.exec_module(check)

# ---- Children that need not import torch: a process that has done so forks them. -------------------------------------

FORKS = r"""
import fcntl, json, os, runpy, socket, sys, time
import torch, torch._inductor.config, torch.utils.deterministic  # what a child imports

channel = socket.socket(fileno=int(sys.argv[1]))
while True:
    message, fds, _, _ = socket.recv_fds(channel, 1 << 16, 16)
    if not message:
        break
    between = os.fork()
    if between:
        os.waitpid(between, 0)  # its child has lost its parent, and becomes the test's
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
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")
    sys.exit()
"""


class Forked(subprocess.Popen):
    """subprocess.Popen as check.Contender calls it, but for the seconds that `import torch` takes."""

    channel = None

    @classmethod
    def begin(cls):
        if cls.channel and cls.server.poll() is None:
            return
        cls.channel, other = socket.socketpair()
        os.set_inheritable(other.fileno(), True)
        cls.server = subprocess.Popen([sys.executable, "-c", FORKS, str(other.fileno())], pass_fds=[other.fileno()])
        other.close()

    def __init__(self, args, *, stdout, pass_fds, **_):
        read, write = os.pipe()
        passed = [stdout.fileno(), write, *pass_fds]
        socket.send_fds(self.channel, [json.dumps([args[1:], [1, 2, *pass_fds]]).encode()], passed)
        os.close(write)
        self.args, self.pid, self.returncode = args, int(self.channel.recv(32)), None
        self.stdin, self.stdout, self.stderr = None, None, open(read, "rb")  # noqa: SIM115
        self._child_created, self._waitpid_lock = True, threading.Lock()


class Shared:
    """The reference's child, the same for all tests of a process. A context manager that does not end it."""

    contender = None

    def __new__(cls, real, slab, relay):
        alive = cls.contender and cls.contender.slab is slab and cls.contender.process.poll() is None
        if not alive:
            cls.drop()
            cls.contender = real("reference", str(ROOT / "reference_model.py"), slab, lambda line: None)
        cls.contender.relay = relay
        return contextlib.nullcontext(cls.contender)

    @classmethod
    def drop(cls):
        if cls.contender:
            cls.contender.__exit__()
        cls.contender = None


@pytest.fixture(scope="session")
def forks():
    check.ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, as check.Contender does
    yield Forked
    Shared.drop()
    Forked.channel.close()
    Forked.server.wait()


@pytest.fixture(scope="session")
def small_slab():
    return check.Slab(torch.device("cpu"), 64 << 20)


@pytest.fixture
def quick(forks, small_slab, monkeypatch):
    """Children are forked; on a CPU all runs share one slab and one reference."""
    forks.begin()
    real = check.Contender

    def contender(who, path, slab, relay):
        shared = who == "reference" and slab is small_slab and path == str(ROOT / "reference_model.py")
        return Shared(real, slab, relay) if shared else real(who, path, slab, relay)

    monkeypatch.setattr(check.subprocess, "Popen", Forked)
    monkeypatch.setattr(check, "new_slab", lambda options: small_slab)
    monkeypatch.setattr(check, "Contender", contender)


# ---- The files of tests/cheats. --------------------------------------------------------------------------------------

STATUS = {"ok": 0, "WRONG": 1, "cannot run": 2}
LAST_LINE = {"ok": "all holds: ", "WRONG": "WRONG: "}
HEADER = re.compile(r'# (ok|WRONG|cannot run)( on cuda)?(?: with ([^,:]+))?(?:, below ([\d.]+)x)?(?:, "([^"]+)")?: .+')


def judge(capsys, path, *options):
    """(exit status, stdout, stderr) of the judge, called in this process. The last option of a name counts."""
    status = check.main(["--solution", str(path), "--device", "cpu", "--size", "96", *options])
    return status, *capsys.readouterr()


def parameters():
    for path in CHEATS:
        match = HEADER.fullmatch(path.read_text().split("\n", 1)[0])
        assert match, f"{path}: the first line is not of the form that tests/test_check.py names"
        verdict, on_cuda, options, below, finding = match.groups()
        options = (options or "").split()
        marks = [helpers.needs_cuda] if on_cuda else []
        if below or "--trials" in options:
            marks.append(pytest.mark.alone)
        else:
            options.append("--no-timing")
        yield pytest.param(path, verdict, options + ["--device", "cuda"] * bool(on_cuda), below, finding, id=path.stem, marks=marks)


@pytest.mark.parametrize("path,verdict,options,below,finding", parameters())
def test_each_file_gets_the_verdict_of_its_first_line(path, verdict, options, below, finding, quick, capsys, tmp_path, monkeypatch):
    for name, value in (("REQUEST_SECONDS", {"cpu": 0.03, "cuda": 0.03}), ("MOST_CALLS", 24), ("CHECK_SECONDS", 1.0)):
        monkeypatch.setattr(check, name, value)
    if "--trials" in options:
        options = ["--size", "256", "--forward-only", *options]
    record = tmp_path / "record.json"
    for seed in range(SEEDS if path.stem.startswith("honest") else 1):
        status, out, err = judge(capsys, path, "--json", str(record), "--seed", str(seed), *options)
        if status == 2:
            Shared.drop()
        kept = json.loads(record.read_text()) if record.exists() else {}
        lines = [line for line in err.splitlines() if not line.startswith("solution: ")]
        wrong = [
            status != STATUS[verdict] and f"exit status {status}, not {STATUS[verdict]}",
            any("Traceback" in line for line in lines) and "check.py itself raises",
            finding and finding not in out + err and f"{finding!r} is not found",
            status < 2 and not out.splitlines()[-1].startswith(LAST_LINE[verdict]) and "the last line is another",
            status < 2 and kept.get("verdict") != verdict.lower() and "the record says something else",
            below and kept["ratio"] >= float(below) and f"a ratio of {kept['ratio']:.2f} is certified",
        ]
        if any(wrong):
            pytest.fail(f"seed {seed}: {'; '.join(filter(None, wrong))}:\n{out}{err}", pytrace=False)
