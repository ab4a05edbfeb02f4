"""Other Python threads go on while a call waits for the GPU's queue, and threads that share what the host keeps get right results."""

import threading
import time

import pytest
import torch
from helpers import DEVICES, LOWER, NN, NT, TN, assert_bitwise, assert_product, needs_cuda, needs_hopper, normal


class LongestGap(threading.Thread):
    """How long, at most, a thread of nothing but short naps stood still."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended, self.seconds = False, 0.0

    def run(self):
        last = time.perf_counter()
        while not self.ended:
            time.sleep(0.0005)
            now = time.perf_counter()
            self.seconds, last = max(self.seconds, now - last), now

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended = True
        self.join()


def calls_of(model, kind):
    """(the product or the backward, how many of it fill the queue several times)."""
    N, dtype = {"hopper": (1300, torch.float32), "half": (1280, torch.float16)}.get(kind, (64, torch.float32))
    A, B, G = (normal(N, N, seed=seed, dtype=dtype, device="cuda") for seed in range(3))
    if kind != "hopper":
        return lambda: model.tril_matmul(A, B), 4000
    C = model.tril_matmul(A.requires_grad_(), B.requires_grad_())
    return lambda: torch.autograd.grad(C, (A, B), G, retain_graph=True), 1500


@needs_hopper
@pytest.mark.alone
@pytest.mark.parametrize("kind", ["tf32", "half", "hopper"])
def test_other_threads_go_on_while_a_launch_waits(model, kind):
    """Behind a kernel of a second or so stand more launches than the queue holds: the thread that launches them has to wait."""
    call, count = calls_of(model, kind)
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(2_000_000_000)
    with LongestGap() as gap:
        for _ in range(count):
            call()
        launched = time.perf_counter() - start
    torch.cuda.synchronize()
    assert launched > 0.4, f"the queue was never full: {count} calls were launched in {launched:.3f} s"
    assert gap.seconds < launched / 4, f"another thread stood still for {gap.seconds:.3f} of {launched:.3f} s"


@pytest.mark.parametrize("device", DEVICES)
def test_threads_that_begin_at_once(model, device):
    """Each asks for the device's properties, and plans, at the same moment; sizes of several kernels."""
    sizes = [20, 70, 150] if device == "cpu" else [64, 300, 512, 1024, 1300]
    dtypes = [torch.float32, torch.float16, torch.float64]
    problems = [[normal(N, N, seed=seed, dtype=dtype, device=device) for seed in range(3)] for N in sizes for dtype in dtypes]
    if device == "cuda":
        torch.cuda.synchronize()
    results, together = [None] * len(problems), threading.Barrier(len(problems))

    def run(at, A, B, G):
        together.wait()
        A, B = (T.clone().requires_grad_() for T in (A, B))
        C = model.tril_matmul(A, B)
        results[at] = (C.detach(), *torch.autograd.grad(C, (A, B), G))

    threads = [threading.Thread(target=run, args=(at, *problem)) for at, problem in enumerate(problems)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (A, B, G), result in zip(problems, results, strict=True):
        for C, X, Y, of, what in zip(result, (A, G, A), (B, B, G), (NN, NT, TN), ("C", "dA", "dB"), strict=True):
            assert_product(C, X, Y, of, LOWER, f"{what}, {A.dtype}, N = {A.shape[-1]}")


@needs_cuda
def test_threads_share_one_graph(model):
    """Two backwards of one graph at once: the counters that the product left are for one of them alone."""
    A, B, G = (normal(1300, 1300, seed=seed, device="cuda") for seed in range(3))
    C = model.tril_matmul(A.requires_grad_(), B.requires_grad_())
    expected = torch.autograd.grad(model.tril_matmul(A, B), (A, B), G)
    results, together = [], threading.Barrier(4)

    def run():
        together.wait()
        results.append(torch.autograd.grad(C, (A, B), G, retain_graph=True))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        for mine, its in zip(result, expected, strict=True):
            assert_bitwise(mine, its)
