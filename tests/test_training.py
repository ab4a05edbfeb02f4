"""The operator in a training loop: autocast, activation checkpointing, a captured training step, two processes, and a notebook that
runs the file's cell more than once."""

import gc
import os

import helpers
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from helpers import DEVICES, FUNCTIONS, LOWER, NN, assert_bitwise, assert_gradients, cuda_path, execute, load, needs_cuda, normal
from torch.utils.checkpoint import checkpoint

AUTOCAST = [("cpu", torch.bfloat16), *(pytest.param("cuda", d, marks=needs_cuda) for d in (torch.float16, torch.bfloat16))]


def operands(N, device, dtype=torch.float32, seed=1):
    return tuple(normal(N, N, seed=seed + s, dtype=dtype, device=device).requires_grad_() for s in (0, 1))


# ---- Autocast. -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "dtype"), AUTOCAST)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_autocast(model, function, device, dtype):
    call = getattr(model, function)
    A, B = operands(70, device)
    expected = call(A.detach().to(dtype), B.detach().to(dtype))
    with torch.autocast(device, dtype):
        C = call(A, B)
        mixed = call(A.detach().to(dtype), B)
        assert torch.matmul(A, B).dtype == C.dtype == dtype
    assert_bitwise(C.detach(), expected)
    assert_bitwise(mixed.detach(), expected)
    G = normal(*C.shape, seed=5, dtype=dtype, device=device)
    dA, dB = torch.autograd.grad(C, (A, B), G)
    assert dA.dtype == dB.dtype == torch.float32
    a, b = (T.detach().to(dtype).requires_grad_() for T in (A, B))
    for mine, its in zip((dA, dB), torch.autograd.grad(call(a, b), (a, b), G), strict=True):
        assert_bitwise(mine, its.float())


@pytest.mark.parametrize(("device", "dtype"), AUTOCAST)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_autocast_without_gradients(model, function, device, dtype):
    call = getattr(model, function)
    A, B = (T.detach() for T in operands(70, device))
    with torch.no_grad(), torch.autocast(device, dtype):
        assert_bitwise(call(A, B), call(A.to(dtype), B.to(dtype)))
        with torch.autocast(device, enabled=False):
            assert call(A, B).dtype == torch.float32
    assert call(A, B).dtype == torch.float32


@pytest.mark.parametrize(("device", "dtype"), AUTOCAST)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_autocast_around_backward_alone_changes_nothing(model, function, device, dtype):
    A, B = operands(70, device)
    C = getattr(model, function)(A, B)
    G = normal(*C.shape, seed=5, device=device)
    expected = torch.autograd.grad(C, (A, B), G, retain_graph=True)
    with torch.autocast(device, dtype):
        found = torch.autograd.grad(C, (A, B), G)
    for mine, its in zip(found, expected, strict=True):
        assert_bitwise(mine, its)


@pytest.mark.parametrize(("device", "dtype"), AUTOCAST)
def test_explain_computes_what_autocast_makes_of_the_operands(model, device, dtype):
    A, B = (T.detach() for T in operands(70, device))
    with torch.autocast(device, dtype):
        explained = model.explain(A, B.to(dtype))
    path = "cpu" if device == "cpu" else cuda_path(model)
    assert explained == {"path": path, "fallback": False, "fallback_at": [], "outliers": 0, "masks": ("lower",) * 3}


@pytest.mark.parametrize(("device", "dtype"), AUTOCAST)
def test_autocast_leaves_float64_alone(model, device, dtype):
    A, B = operands(20, device, torch.float64)
    with torch.autocast(device, dtype):
        C = model.tril_matmul(A, B)
        assert torch.matmul(A, B).dtype == C.dtype == torch.float64
        with pytest.raises(RuntimeError, match="must have the same dtype, but are torch.float64 and torch.float32"):
            model.tril_matmul(A, B.float())
        with pytest.raises(RuntimeError, match="must have the same dtype, but are torch.float32 and torch.float64"):
            model.tril_matmul(A.float(), B)
    assert_bitwise(C.detach(), model.tril_matmul(A, B).detach())


# ---- Activation checkpointing. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_activation_checkpointing(model, function, reentrant, device):
    def block(A, B):
        return getattr(model, function)(torch.tanh(A), B).sin()

    A, B = operands(70, device)
    expected = torch.autograd.grad(block(A, B).sum(), (A, B))
    checkpoint(block, A, B, use_reentrant=reentrant).sum().backward()  # the older form knows only backward()
    for mine, its in zip((A.grad, B.grad), expected, strict=True):
        assert_bitwise(mine, its)


# ---- Training. -------------------------------------------------------------------------------------------------------


class Factors(torch.nn.Module):
    """x -> tril(P) tril(Q) x"""

    def __init__(self, product_of, N, seed=0):
        super().__init__()
        self.product_of = product_of
        self.P, self.Q = (torch.nn.Parameter(torch.eye(N) + 0.1 * normal(N, N, seed=seed + s) / N**0.5) for s in (0, 1))

    def forward(self, x):
        return self.product_of(self.P, self.Q) @ x


def reference(A, B):
    return torch.tril(torch.matmul(A.tril(), B.tril()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_training_run_is_that_of_the_reference(model, optimizer, device):
    def losses(product_of):
        module = Factors(product_of, 70).to(device)
        steps = getattr(torch.optim, optimizer)(module.parameters(), lr=1e-2)
        target, x, told = normal(70, 70, seed=3, device=device).tril(), normal(70, 32, seed=4, device=device), []
        for _ in range(20):
            steps.zero_grad()
            loss = ((module(x) - target @ x) ** 2).mean()
            loss.backward()
            steps.step()
            told.append(loss.item())
        return torch.tensor(told), module

    (mine, module), (its, _) = losses(model.tril_matmul), losses(reference)
    assert mine[-1] < mine[0]
    torch.testing.assert_close(mine, its, rtol=1e-4, atol=0)
    start = Factors(reference, 70).to(device)
    for name in ("P", "Q"):  # the upper triangle is no input, so nothing moves there
        assert torch.equal(getattr(module, name).detach().triu(1), getattr(start, name).detach().triu(1))


@needs_cuda
@pytest.mark.parametrize("N", [70, 1400])
def test_a_whole_training_step_in_a_cuda_graph(model, N):
    module = Factors(model.tril_matmul, N).cuda()
    steps = torch.optim.SGD(module.parameters(), lr=0.5)
    x, target = torch.zeros(N, 32, device="cuda"), torch.zeros(N, 32, device="cuda")

    def step():
        steps.zero_grad(set_to_none=True)
        loss = ((module(x) - target) ** 2).mean()
        loss.backward()
        steps.step()
        return loss

    start = {name: T.clone() for name, T in module.state_dict().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    batches = [(normal(N, 32, seed=s, device="cuda"), normal(N, 32, seed=s + 50, device="cuda")) for s in range(5)]

    def train(run):
        module.load_state_dict(start)
        told = []
        for new_x, new_target in batches:
            x.copy_(new_x)
            target.copy_(new_target)
            told.append(run().detach().clone())
        return torch.stack(told), {name: T.clone() for name, T in module.state_dict().items()}

    def replay():
        graph.replay()
        return loss

    replayed, replayed_end = train(replay)
    eager, eager_end = train(step)
    torch.testing.assert_close(replayed, eager, rtol=1e-5, atol=0)
    for name in start:
        assert not torch.equal(replayed_end[name], start[name])
        torch.testing.assert_close(replayed_end[name], eager_end[name], rtol=1e-5, atol=1e-7)


@needs_cuda
def test_training_leaks_no_memory(model):
    A, B = operands(1400, "cuda")

    def step():
        model.tril_matmul(A, B).sum().backward()
        A.grad = B.grad = None

    step()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        step()
    assert torch.cuda.memory_allocated() == before


# ---- Two processes. --------------------------------------------------------------------------------------------------


def work_of_one_process(rank, processes, init_file, results):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # nothing leaves this machine
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{init_file}", rank=rank, world_size=processes)
    try:
        parallel = torch.nn.parallel.DistributedDataParallel(Factors(load().tril_matmul, 30, seed=100 * rank))  # rank 0's are broadcast
        steps = torch.optim.SGD(parallel.parameters(), lr=0.1)
        for step in range(3):
            steps.zero_grad()
            (parallel(normal(30, 8, seed=10 * step + rank)) ** 2).mean().backward()
            steps.step()
        torch.save({name: T.detach() for name, T in parallel.module.named_parameters()}, f"{results}/{rank}.pt")
        torch.distributed.barrier()
        del parallel, steps  # which hold the process group: with it their threads end here, not when the interpreter does
        gc.collect()
    finally:
        torch.distributed.destroy_process_group()


@helpers.forks
@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_distributed_data_parallel(model, tmp_path):
    arguments, method = (2, str(tmp_path / "meet"), str(tmp_path)), helpers.forked_processes().get_start_method()
    torch.multiprocessing.start_processes(work_of_one_process, args=arguments, nprocs=2, start_method=method)
    ended = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    single = Factors(model.tril_matmul, 30)
    steps = torch.optim.SGD(single.parameters(), lr=0.1)
    for step in range(3):
        steps.zero_grad()
        sum((single(normal(30, 8, seed=10 * step + rank)) ** 2).mean() / 2 for rank in (0, 1)).backward()
        steps.step()
    for name, T in single.named_parameters():
        assert_bitwise(ended[0][name], ended[1][name], f"{name} of the two processes")
        torch.testing.assert_close(ended[0][name], T.detach(), rtol=1e-5, atol=1e-6)


# ---- The file executed more than once. -------------------------------------------------------------------------------


@pytest.fixture
def rooms(model):
    """The file executed three times. Afterwards torch has the operator of one of its own."""
    yield [execute() for _ in range(3)]
    execute()


@pytest.mark.parametrize(("device", "N"), [("cpu", 70), *(pytest.param("cuda", N, marks=needs_cuda) for N in (70, 1400))])
def test_the_file_executed_three_times_in_one_process(rooms, device, N):
    A, B = operands(N, device)
    first = None
    for _ in range(3):
        for room in rooms:
            C = room["tril_matmul"](A, B)
            D = room["ModelNew"]()(A, B)
            results = [C, D, *torch.autograd.grad((C * D).sum(), (A, B))]
            E = room["_multiply"](A, B, 0, 1)
            results += [E, *torch.autograd.grad(E.sum(), (A, B))]
            X = torch.ops.tril_matmul.product(A, B, NN, LOWER)
            results += [X, *torch.autograd.grad(X.sum(), (A, B))]
            results.append(torch.vmap(room["tril_matmul"])(A[None], B[None]))
            first = first or results
            for mine, its in zip(results, first, strict=True):
                assert_bitwise(mine.detach(), its.detach())
        gc.collect()


@pytest.mark.parametrize("device", DEVICES)
def test_each_of_three_executions_can_be_compiled(rooms, device, forget_compiled):
    for room in rooms:
        torch._dynamo.reset()
        compiled = torch.compile(room["tril_matmul"], fullgraph=True, backend="aot_eager")
        A, B = operands(20, device)
        mine, its = compiled(A, B), room["tril_matmul"](A, B)
        assert_bitwise(mine.detach(), its.detach())
        compiled_gradients, gradients = (torch.autograd.grad(C.sum(), (A, B)) for C in (mine, its))
        for its_gradients in (compiled_gradients, gradients):
            assert_gradients(its_gradients, "tril_matmul", A, B, torch.ones_like(its))
        if device == "cpu":  # on a GPU another kernel computes where the gradient of the sum is written out than where its strides are 0
            for mine, its in zip(compiled_gradients, gradients, strict=True):
                assert_bitwise(mine, its)
