"""examples/distributed.py in two processes over gloo: DTensors, the columns of one product, and the order in which they are spread."""

import datetime
import functools
import json
import os
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import helpers
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from helpers import LOWER, NN, ROOT, assert_bitwise, assert_gradients, assert_product, normal

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="this torch has no gloo"
)

SCRIPT = ROOT / "examples" / "distributed.py"
SECONDS = 120  # of two processes: they take some ten, on a machine that does nothing else


def example():
    return helpers.module("distributed", "examples")  # in this process and in two others


@pytest.fixture(autouse=True)
def same_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the example puts its folders there


# ---- What each of two processes does. --------------------------------------------------------------------------------


def work_of_one_process(rank, processes, init_file):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # nothing leaves this machine
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=SECONDS)
    torch.distributed.init_process_group("gloo", init_method=f"file://{init_file}", rank=rank, world_size=processes, timeout=patience)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (processes,))
        case = SimpleNamespace(module=example(), model=helpers.load(), mesh=mesh)
        what_is_not_registered(case)
        case.module.register()
        for check in (batches, a_replicated_factor, divided_columns, inverses, what_is_gathered, columns_of_one_product, what_is_refused):
            check(case)
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def spread(case, T, *placements):
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(T, case.mesh, placements, src_data_rank=None)


def what_is_not_registered(case):
    """The error names what is to be called."""
    from torch.distributed.tensor import Replicate

    T = spread(case, torch.eye(4), Replicate())
    for function, operands in ((case.model.tril_matmul, (T, T)), (case.model.triangular_inverse, (T,))):
        with pytest.raises(NotImplementedError, match=r"register\(\) of examples/distributed.py"):
            function(*operands)


def results(function, operands, G):
    """What a function makes of the operands, and its gradients."""
    operands = [T.detach().requires_grad_() for T in operands]
    C = function(*operands)
    return [C, *torch.autograd.grad(C, operands, G)]


def assert_same_bits(case, function, operands, G, place):
    """Of DTensors that all lie in one way a function makes what it makes of tensors, gradients included, and it lies in that way."""
    of_tensors = results(function, operands, G)
    of_dtensors = results(function, [spread(case, T, place) for T in operands], spread(case, G, place))
    for name, mine, its in zip(("C", "first gradient", "second gradient"), of_dtensors, of_tensors, strict=False):
        assert tuple(mine.placements) == (place,), f"{name} lies as {mine.placements}"
        assert_bitwise(mine.full_tensor().detach(), its.detach(), name)


def batches(case):
    from torch.distributed.tensor import Replicate, Shard

    model, A, B, G = case.model, *(normal(4, 2, 30, 30, seed=seed) for seed in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is gathered
        for function in (model.tril_matmul, model.triu_matmul, model.transposed_a_matmul, model.triangular_matmul, model.lu_matmul):
            for place in (Shard(0), Shard(1), Replicate()):
                assert_same_bits(case, function, (A, B), G, place)
        for place in (Shard(0), Shard(1), Replicate()):
            for upper in (False, True):
                assert_same_bits(case, functools.partial(model.triangular_matmul, upper=upper, unitriangular=True), (A, B), G, place)
            assert_same_bits(case, model.gram, (A,), G, place)
            assert_same_bits(case, lambda L: model.gram(L, structure="lower"), (A,), G, place)


def a_replicated_factor(case):
    """One matrix that every product of a sharded batch has: its gradient is the sum over all of them."""
    from torch.distributed.tensor import Replicate, Shard

    A, B, G = normal(30, 30, seed=1), normal(4, 30, 30, seed=2), normal(4, 30, 30, seed=3)
    C, dA, dB = results(case.model.tril_matmul, [spread(case, A, Replicate()), spread(case, B, Shard(0))], spread(case, G, Shard(0)))
    its_C, its_dA, its_dB = results(case.model.tril_matmul, [A, B], G)
    assert tuple(C.placements) == (Shard(0),)
    assert_bitwise(C.full_tensor().detach(), its_C.detach())
    assert_bitwise(dB.full_tensor(), its_dB)
    torch.testing.assert_close(dA.full_tensor(), its_dA)


def divided_columns(case):
    """Where an index belongs to no triangle, it may be divided: the columns of X in A X; in X X^T each rank has a term of the sum."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    model, A, X, G = case.model, *(normal(24, columns, seed=columns, dtype=torch.float64) for columns in (24, 10, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        operands = spread(case, A, Replicate()), spread(case, X, Shard(1))
        C, *gradients = results(model.triangular_matmul, operands, spread(case, G, Shard(1)))
        S = model.gram(spread(case, X, Shard(1)))
    assert tuple(C.placements) == (Shard(1),) and tuple(S.placements) == (Partial(),)
    for mine, its in zip([C, *gradients], results(model.triangular_matmul, [A, X], G), strict=True):
        torch.testing.assert_close(mine.full_tensor().detach(), its.detach())
    torch.testing.assert_close(S.full_tensor(), model.gram(X))


def inverses(case):
    from torch.distributed.tensor import Replicate, Shard

    L, G = torch.eye(20) + normal(4, 20, 20, seed=1) / 20, normal(4, 20, 20, seed=2)
    for place in (Shard(0), Replicate()):
        assert_same_bits(case, case.model.triangular_inverse, (L,), G, place)


def what_is_gathered(case):
    """The rows of a triangle cannot be divided: torch gathers them, which is said; a batch of three between two is gathered as it is."""
    from torch.distributed.tensor import Replicate, Shard

    A, B = (normal(26, 26, seed=seed) for seed in range(2))
    with pytest.warns(UserWarning, match=r"product cannot be divided along dimension 0 of X, of shape \(26, 26\).*torch gathers it whole"):
        C = case.model.tril_matmul(spread(case, A, Shard(0)), spread(case, B, Replicate()))
    assert_bitwise(C.full_tensor(), case.model.tril_matmul(A, B))
    with pytest.warns(UserWarning, match="inverse cannot be divided along dimension 1 of L"):
        case.model.triangular_inverse(spread(case, A, Shard(1)))
    A, B = (normal(3, 26, 26, seed=seed) for seed in range(2))
    C = case.model.tril_matmul(spread(case, A, Shard(0)), spread(case, B, Shard(0)))
    assert_bitwise(C.full_tensor(), case.model.tril_matmul(A, B))


def columns_of_one_product(case):
    """C and both gradients, from operands with NaN above their diagonals, which nobody reads."""
    from torch.distributed.tensor import Replicate, Shard

    module, world, upper = case.module, case.mesh.size(), torch.ones(96, 96).triu(1).bool()
    for folds, dtype in ((1, torch.float32), (2, torch.float32), (3, torch.float64)):
        A, B, G = (normal(96, 96, seed=seed, dtype=dtype).masked_fill(upper, float("nan")) for seed in range(3))
        b, g = (spread(case, module.fold(T, world, folds), Shard(1)) for T in (B, G))
        a, b = spread(case, A, Replicate()).requires_grad_(), b.requires_grad_()
        C = module.column_parallel(a, b, case.mesh, folds)
        C.backward(g)
        assert tuple(C.placements) == tuple(b.grad.placements) == (Shard(1),) and tuple(a.grad.placements) == (Replicate(),)
        dB = module.unfold(b.grad.full_tensor(), world, folds)
        assert_product(module.unfold(C.full_tensor(), world, folds).contiguous(), A, B, NN, LOWER, f"C of {folds} folds")
        assert_gradients((a.grad.full_tensor(), dB), "tril_matmul", A, B, G, f" of {folds} folds")


def what_is_refused(case):
    from torch.distributed.tensor import Replicate, Shard

    A = normal(96, 96, seed=1)
    a, b = spread(case, A, Replicate()), spread(case, A, Shard(1))
    for error, says, operands, folds in (
        (TypeError, "A must be a DTensor .*, but is Tensor", (A, b), 2),
        (ValueError, r"B must be sharded over its columns, \[Shard\(1\)\], but is placed \[Replicate\(\)\]", (a, a), 2),
        (ValueError, r"96 columns cannot be cut into 2 \* 2 \* 5 blocks", (a, b), 5),
        (ValueError, r"A and B must be \(N, N\), but are \(96, 96\) and \(96, 2\)", (a, spread(case, A[:, :2], Shard(1))), 2),
    ):
        with pytest.raises(error, match=says):
            case.module.column_parallel(*operands, case.mesh, folds)


@helpers.forks
def test_two_processes(tmp_path):
    arguments, method = (2, str(tmp_path / "meet")), helpers.forked_processes().get_start_method()
    processes = torch.multiprocessing.start_processes(work_of_one_process, args=arguments, nprocs=2, join=False, start_method=method)
    until = time.monotonic() + SECONDS
    while not processes.join(timeout=1):  # raises what one of them raised
        if time.monotonic() > until:
            for process in processes.processes:
                process.kill()
            pytest.fail(f"two processes did not end within {SECONDS} s")


# ---- The order of the columns. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_the_folded_order_spreads_the_work(world):
    module, N = example(), 1024
    work = module.multiply_adds(N, world, 2)
    assert sum(work) == N * (N + 1) * (N + 2) // 6  # which is all there is
    assert max(work) * world / sum(work) <= (1.001 if world <= 2 else 1.1), work


@pytest.mark.parametrize(("world", "folds"), [(1, 1), (2, 1), (2, 3), (3, 2), (8, 2)])
def test_fold_and_unfold(world, folds):
    module, N = example(), 2 * world * folds * 3
    T = torch.arange(N * N).view(N, N)
    order = module.folded_order(N, world, folds)
    assert order.sort().values.tolist() == list(range(N))
    folded = module.fold(T, world, folds)
    assert torch.equal(folded, T[:, order]) and torch.equal(module.unfold(folded, world, folds), T)
    for rank, columns in enumerate(order.view(world, -1)):
        assert columns.tolist() == sorted(columns.tolist())  # a rank's blocks ascend
        assert columns[::3].div(3, rounding_mode="floor").tolist() == module.blocks_of(rank, world, folds)


# ---- The script. -----------------------------------------------------------------------------------------------------


def test_the_script_with_one_process(tmp_path):
    options = ["--size", "64", "--batch", "2", "16", "--device", "cpu", "--json", str(tmp_path / "rows.json")]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rank on the CPU, gloo" in done.stdout and "the all-reduce of dA" in done.stdout
    rows = [line for line in done.stdout.splitlines() if "forward" in line]
    assert [row.split(",")[0] for row in rows] == ["2 x 16 x 16"] * 2 + ["64 x 64"] * 2
    written = json.loads((tmp_path / "rows.json").read_text())
    assert [f"{row['what']}, {row['mode']}" for row in written] == [line[:40].rstrip() for line in rows]
    assert all(row["ratio"] == row["one_ms"] / row["together_ms"] and row["norm_error"] < 1e-6 for row in written)
    assert [row["mode"] for row in written if row.get("all_reduce_ms", 0) > 0] == ["forward + backward"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--size", "30"], "--size 30 --folds 2 is given, with 3 ranks; a multiple of 2 * ranks * folds"),
        (["--size", "0"], "--size 0"),
        (["--size", "48", "--folds", "0"], "--folds 0 is given"),
        (["--size", "48", "--batch", "0", "4"], "--batch: 0 4 is given"),
        (["--size", "48", "--json", "no/rows.json"], "--json: no/rows.json is given; a file in an existing folder"),
    ],
)
def test_the_script_says_beforehand_what_it_cannot_do(options, says, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(SystemExit):
        example().main(options)
    assert says in capsys.readouterr().err
