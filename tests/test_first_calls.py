"""A process's first product, or a thread's, in every way that it may come to be: right, for every kernel. Each case is a process of its own
(first_call.py), twelve at a time.

Issue 29: a thread's first call of the driver's functions had no context, so that 18 of 101 first calls raised an error."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from first_call import WAYS
from helpers import HAS_CUDA, HAS_HOPPER, ROOT, needs_cuda, needs_two_gpus

AT_ONCE = min(12, max(2, (os.cpu_count() or 1) * 3 // 4))
SECONDS = 300

# A size of each kernel (docs/kernel.md: "Which kernel computes what"), of each of its dtypes.
KERNELS = [
    ("half", "float16", 1280),
    ("half", "bfloat16", 1280),
    ("mma", "float16", 256),
    ("mma", "bfloat16", 512),
    ("mma", "float64", 1024),
    ("hopper", "float32", 1300),
    ("tf32", "float32", 512),
    ("tf32", "float32", 64),
    ("mma", "float64", 64),
]
ON_GPU = [(way, *case) for way in WAYS for case in KERNELS if way != "autocast" or "float16" in case[1]]
ON_CPU = [("backward", "float32"), ("thread backward", "bfloat16"), ("compile", "float64"), ("autocast", "bfloat16"), ("worker", "float16")]
ON_SECOND = [(way, *case) for way in ("forward", "backward first", "thread", "thread backward", "graph") for case in KERNELS[1::2]]
CASES = [
    *(pytest.param(way, "cpu", "cpu", dtype, 70, id=f"{way}, cpu, {dtype}") for way, dtype in ON_CPU),
    *(pytest.param(way, "cuda:0", *case, marks=needs_cuda, id=" ".join(map(str, (way, *case)))) for way, *case in ON_GPU),
    *(pytest.param(way, "cuda:1", *case, marks=needs_two_gpus, id=" ".join(map(str, (way, "cuda:1", *case)))) for way, *case in ON_SECOND),
]

pytestmark = pytest.mark.xdist_group("first calls")  # one process starts them all


@pytest.fixture(scope="module")
def calls(request, model):
    """Starts those of this module that are to run. Each is waited for by its test. `model`: what is shared is built."""

    def call(way, device, kernel, dtype, N):
        kernel = kernel if device == "cpu" or (HAS_HOPPER and os.environ.get("TRIL_MATMUL_PATH", "auto") == "auto") else "any"
        threads = {} if HAS_CUDA else {"OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, ROOT / "tests" / "first_call.py", way, device, dtype, str(N), kernel],
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    wanted = [item.callspec.params["case"] for item in request.session.items if item.module is request.module and not skipped(item)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = {case: pool.submit(call, *case) for case in wanted}
        yield started
        pool.shutdown(cancel_futures=True)


def skipped(item):
    return any(mark.args[0] for mark in item.iter_markers("skipif"))


@pytest.mark.parametrize("case", [pytest.param(tuple(case.values), marks=case.marks, id=case.id) for case in CASES])
def test_a_first_call(calls, case):
    done = calls[case].result()
    assert done.returncode == 0 and done.stdout == "right\n", f"{done.stdout}{done.stderr[-3000:]}"
