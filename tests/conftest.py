"""Sets up what the tests share: several processes, tests that run alone, a summary of skipped tests, and the module under test.

With pytest-xdist, the tests run in one process per core and one additional process, because tests wait a third of the time. There are at
most twelve processes. If the machine has a GPU, there are at most as many as the GPU's memory allows. `-n 4` asks for four processes. With
`-n 0`, all tests run in the first process. They also run in one process without pytest-xdist or with `-p no:xdist`.

Tests of one xdist_group run in the same process, so that they share what takes long to make, such as a compiled program. Tests marked alone
measure times, or need a whole GPU. If there are several processes, these tests come last, and no other test runs beside them.
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
# The GPU memory, in bytes, that is planned for each test process. It holds the process's CUDA context, and float64 matrices to compare
# with, which torch's allocator caches.
GPU_BYTES = 8 * 2**30

# ---- Processes. ------------------------------------------------------------------------------------------------------


def number_of_cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_cuda():
    """Returns whether torch sees a GPU. If there is no GPU driver, the function returns False without importing torch."""
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


@pytest.hookimpl(tryfirst=True)  # runs before xdist reads the options
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
        option.loadscopereorder = False  # xdist must keep the order of pytest_collection_modifyitems


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    # A worker reads the options from the command line, so it does not see the value of `dist` that pytest_cmdline_main has set. The entry
    # "loadgroup" tells the worker.
    node.workerinput["loadgroup"] = node.config.option.dist == "loadgroup"


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: nothing runs beside this test")
    config.addinivalue_line("markers", "xdist_group: tests of one group run in one process")
    processes = len(config.getoption("tx", None) or ())
    if is_worker(config) or not processes or config.option.collectonly:
        return
    # The test processes inherit these variables. If all processes together have more threads than there are cores, threads that wait in a
    # loop take the cores from threads that work. On two cores that other programs use as well, the training of test_example.py takes 34 s
    # with two threads per process, and less than 1 s with one thread.
    threads = str(max(1, min(2, number_of_cores() // processes)))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ.setdefault(name, threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # This import builds the kernels once, before the test processes need them. If the build fails, the tests that need the kernels report
    # the reason.
    if has_cuda():
        subprocess.run([sys.executable, "-c", "import model_new"], cwd=Path(__file__).resolve().parent.parent)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keeps the garbage collector from examining the objects of torch and of thousands of tests, which live until the end.

    The collector is off while the tests are collected. gc.freeze() then excludes these objects from later collections.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # runs before xdist appends the groups to the names of the tests
def pytest_collection_modifyitems(config, items):
    if is_worker(config):  # tests of groups come first, because they take long, and tests marked alone come last
        items.sort(key=lambda item: 2 if item.get_closest_marker("alone") else 0 if item.get_closest_marker("xdist_group") else 1)


def give_memory_back():
    """Empties the cache of torch's allocator if the allocator holds more than half of GPU_BYTES.

    After a large test, the cache can keep 40 GB that this process does not need, and other processes would lack this memory.
    """
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > GPU_BYTES // 2:
        with contextlib.suppress(RuntimeError):  # such an error comes from the test, which has already reported it
            torch.cuda.empty_cache()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Locks a file while a test runs in a worker. Tests marked alone lock the file exclusively, and all other tests share the lock. So no
    test of another worker runs beside a test marked alone."""
    if not is_worker(item.config):
        return (yield)
    with (Path(item.config.option.basetemp).parent / "running").open("a") as lock:  # closing the file releases the lock
        fcntl.flock(lock, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        result = yield
        give_memory_back()
        return result


# ---- A line that counts the skipped tests. ---------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter):
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.write_line("skipped: " + "; ".join(f"{count} ({reason})" for reason, count in reasons.most_common()))


# ---- Fixtures. -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model():
    """Returns the module model_new. On a machine with a GPU, its import builds the kernels."""
    import helpers

    return helpers.load()


@pytest.fixture
def forget_compiled():
    """Empties torch.compile's cache before and after the test."""
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# The functions below import check.py and torch only when a test uses them, because these imports take long.


@pytest.fixture(scope="session")
def forks():
    """Yields the class Forked, which starts the children of check.py as forks. The fixture `quick` puts this class in place of
    subprocess.Popen in judge/sandbox.py."""
    from forked_judge import Forked, Shared

    from judge import guard

    # 36 is PR_SET_CHILD_SUBREAPER. A descendant whose parent has ended then becomes a child of this process, so that this process can wait
    # for it.
    guard.LIBC.prctl(36, 1, 0, 0, 0)
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
    """Makes runs of check.py in this process fast. Their children are forks. On a CPU, all runs share two slabs, and one child that runs
    reference_model.py."""
    from forked_judge import ROOT, Shared, check

    from judge import problems, sandbox

    forks.begin()
    real = check.Contender

    def contender(who, path, slab, **others):
        shared = who == "reference" and slab is small_slab and path == str(ROOT / "reference_model.py")
        return Shared(real, slab) if shared else real(who, path, slab, **others)

    monkeypatch.setattr(sandbox, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "Popen": forks}))
    # Timed batches of inverses are small here, to save time. The judge also draws batches of other sizes, independently of this number.
    monkeypatch.setattr(problems, "INVERSES", {"cpu": 1 << 14, "cuda": 1 << 14})
    real_slab, slabs = check.Run.new_slab, itertools.cycle([small_slab, solutions_slab])
    monkeypatch.setattr(check.Run, "new_slab", lambda run: real_slab(run) if run.cuda else next(slabs))
    monkeypatch.setattr(check, "Contender", contender)
