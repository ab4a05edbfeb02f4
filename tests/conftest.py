"""What the tests share: several processes, tests that run alone, a summary of what is skipped, and the module under test.

With pytest-xdist the tests run in one process a core and one more, since they wait a third of the time, at most twelve; `-n 4` asks for
four, `-n 0` for none but the first. Without it, or with `-p no:xdist`, they run in one. Tests marked xdist_group run in one process, so
that the program they share is compiled once. Tests marked alone compare times with a clock: they come last, and nothing runs beside them.
"""

import contextlib
import ctypes
import fcntl
import gc
import itertools
import os
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import pytest

MOST_PROCESSES = 12
GPU_BYTES = 8 * 2**30  # that a process may come to hold: float64 matrices to compare with, which torch's allocator keeps, and its context

# ---- Processes. ------------------------------------------------------------------------------------------------------


def number_of_cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_cuda():
    """Whether torch sees a GPU. Where there is no driver for one, the first process need not wait for torch."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    import helpers

    return helpers.HAS_CUDA


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    processes = min(MOST_PROCESSES, number_of_cores() + 1)
    if has_cuda():
        import torch

        processes = min(processes, torch.cuda.get_device_properties(0).total_memory // GPU_BYTES)
    return max(1, processes)


def is_worker(config):
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the options
def pytest_cmdline_main(config):
    option = config.option
    if is_worker(config):
        option.loadgroup = config.workerinput["loadgroup"]
    if is_worker(config) or not config.pluginmanager.hasplugin("xdist"):
        return
    if option.numprocesses is None and not option.tx:
        option.numprocesses = "auto"
    if option.numprocesses and option.dist == "no":
        option.dist = "loadgroup"
        option.loadscopereorder = False  # pytest_collection_modifyitems puts them in order


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["loadgroup"] = node.config.option.dist == "loadgroup"  # a process reads the command line alone, not what is set here


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: nothing runs beside this test")
    config.addinivalue_line("markers", "xdist_group: tests of one group run in one process")
    processes = len(config.getoption("tx", None) or ())
    if is_worker(config) or not processes or config.option.collectonly:
        return
    # The processes inherit these. Threads of several that wait for each other in a loop take the cores from those that work: on two cores
    # that others use as well, the training of test_example.py takes 34 s with two threads a process, and less than one with one.
    threads = str(max(1, min(2, number_of_cores() // processes)))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ.setdefault(name, threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if has_cuda():  # builds the kernels, once; if that fails, the tests that need them say why
        subprocess.run([sys.executable, "-c", "import model_new"], cwd=Path(__file__).resolve().parent.parent)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """torch, and thousands of tests, stay until the end: the garbage collector looks at them neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before xdist names the groups
def pytest_collection_modifyitems(config, items):
    if is_worker(config):  # groups first, because they take long
        items.sort(key=lambda item: 2 if item.get_closest_marker("alone") else 0 if item.get_closest_marker("xdist_group") else 1)


def give_memory_back():
    """What torch's allocator keeps of a large test's: 40 GB in a process, where nobody asks for it, and other processes find none."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > GPU_BYTES // 2:
        with contextlib.suppress(RuntimeError):  # an error of the test's, which it has told
            torch.cuda.empty_cache()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Tests hold a lock that they share; a test marked alone holds it by itself."""
    if not is_worker(item.config):
        return (yield)
    with (Path(item.config.option.basetemp).parent / "running").open("a") as lock:  # closing it gives the lock back
        fcntl.flock(lock, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        result = yield
        give_memory_back()
        return result


# ---- What is skipped: one line. --------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter):
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.write_line("skipped: " + "; ".join(f"{count} ({reason})" for reason, count in reasons.most_common()))


# ---- Fixtures. -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model():
    """The module model_new (on a GPU machine its import builds the kernels)."""
    import helpers

    return helpers.load()


@pytest.fixture
def forget_compiled():
    """An empty torch.compile cache before and after."""
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# These import check.py, and torch, when a test asks for them.


@pytest.fixture(scope="session")
def forks():
    """The class by which check.py starts its children as forks."""
    from forked_judge import Forked, Shared

    from judge import guard

    guard.LIBC.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: a process that loses its parent becomes this process's child
    yield Forked
    Shared.drop()
    Forked.channel.close()
    Forked.server.wait()


def new_slab():
    import torch
    from forked_judge import check

    return check.Slab(torch.device("cpu"), 64 << 20)


@pytest.fixture(scope="session")
def small_slab():
    return new_slab()


@pytest.fixture(scope="session")
def solutions_slab():
    return new_slab()


@pytest.fixture
def quick(forks, small_slab, solutions_slab, monkeypatch):
    """check.py forks its children. On a CPU all runs share two slabs and one reference."""
    from forked_judge import ROOT, Shared, check

    from judge import problems, sandbox

    forks.begin()
    real = check.Contender

    def contender(who, path, slab, **others):
        shared = who == "reference" and slab is small_slab and path == str(ROOT / "reference_model.py")
        return Shared(real, slab) if shared else real(who, path, slab, **others)

    monkeypatch.setattr(sandbox, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "Popen": forks}))
    monkeypatch.setattr(problems, "INVERSES", {"cpu": 1 << 14, "cuda": 1 << 14})  # few of a headline's, beside batches of all kinds
    real_slab, slabs = check.Run.new_slab, itertools.cycle([small_slab, solutions_slab])
    monkeypatch.setattr(check.Run, "new_slab", lambda run: real_slab(run) if run.cuda else next(slabs))
    monkeypatch.setattr(check, "Contender", contender)
