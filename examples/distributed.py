"""Computes products on several GPUs: batches as DTensors, and one product whose columns are spread over the ranks.

Without torchrun the script runs in one process, for comparison. GPUs communicate by nccl, and CPUs by gloo.

    torchrun --nproc-per-node 2 examples/distributed.py
    torchrun --nproc-per-node 2 examples/distributed.py --size 32768
    python examples/distributed.py

register() tells torch.distributed.tensor how to divide the operators of model_new.py. The functions of model_new.py, except explain, then
take DTensors. column_parallel() computes one product. Every rank has all of A, and each rank has some columns of B and the same columns of
C.

The script measures a batch of DTensors, and one product by column_parallel(). It compares their results and gradients with float64, and
prints the times on all devices beside the times on one device.
"""

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map, register_sharding

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # model_new.py and timing.py lie there

from timing import add_device, milliseconds, name_of, relative_error  # noqa: E402

import model_new  # noqa: E402
from model_new import triangular_matmul, tril_matmul  # noqa: E402

NN, NT, TN = model_new._NN, model_new._NT, model_new._TN  # the operator's numbers for X Y, X Y^T and X^T Y
ALL, LOWER = model_new._FULL, model_new._TRIL  # masks: a matrix has all of its elements, or only its lower triangle

LARGEST_ERROR = 1e-6  # the largest accepted error of C and of the gradients, |C - exact| / |exact|, in float32

# ---- (a) DTensors: what may be divided. ------------------------------------------------------------------------------


def product_placements(X, Y, contraction, structure):
    """Returns the allowed placements of C, X and Y along one dimension of a mesh. C[i, j] is the sum over k of X[i, k] Y[k, j], where X
    and Y may be transposed first (see `contraction`).

    A leading dimension may always be divided. An index i, j or k may be divided if neither of the two matrices with this index is
    triangular or symmetric. For example, the columns of X in triangular_matmul(A, X) may be divided. The columns of X in gram(X) may be
    divided, too. Each rank then computes a matrix, and the sum of these matrices is C (Partial).
    """
    x, y, c = model_new._masks(structure)
    rows, columns = X.ndim - 2, X.ndim - 1
    i, x_k = (columns, rows) if contraction == TN else (rows, columns)
    y_k, j = (columns, rows) if contraction == NT else (rows, columns)
    placements = [(Shard(d), Shard(d), Shard(d)) for d in range(rows)]
    placements += [(Shard(rows), Shard(i), Replicate())] if x == c == ALL else []
    placements += [(Shard(columns), Replicate(), Shard(j))] if y == c == ALL else []
    placements += [(Partial(), Shard(x_k), Shard(y_k))] if x == y == ALL else []
    warn_of_gathering("product", ("X", X, {placement[1] for placement in placements}), ("Y", Y, {placement[2] for placement in placements}))
    return [([C], [X, Y, None, None]) for C, X, Y in ((Replicate(), Replicate(), Replicate()), *placements)]


def inverse_placements(L, unitriangular):
    """Returns the allowed placements of an inverse and of L along one dimension of a mesh. Only leading dimensions may be divided."""
    placements = [Shard(d) for d in range(L.ndim - 2)]
    warn_of_gathering("inverse", ("L", L, set(placements)))
    return [([placement], [placement, None]) for placement in (Replicate(), *placements)]


def warn_of_gathering(operator, *operands):
    """Warns if DTensor will gather an operand that cannot stay divided. DTensor gathers operands of torch's own operators in the same way.
    It caches its decision for each shape, so the warning comes once per shape."""
    for name, T, allowed in operands:
        gathered = [placement for placement in T.placements if placement.is_shard() and placement not in allowed]
        if gathered:
            warnings.warn(
                f"tril_matmul: {operator} cannot be divided along dimension {gathered[0].dim} of {name}, of shape {tuple(T.shape)}, where a"
                " triangle or a symmetric result lies: torch gathers it whole on every rank (leading dimensions can be divided; for"
                " columns of one product see column_parallel)",
                stacklevel=2,
            )


def register():
    """Makes the functions of model_new.py, except explain, take DTensors. This includes their gradients.

    DTensors that are replicated, or sharded over leading dimensions, are multiplied without communication. If one operand is replicated
    and the other one is sharded, each rank uses the part of the replicated operand that it needs. In the backward pass an all-reduce then
    sums the gradient of the replicated operand.

    An operand is gathered first if a sharded dimension is no multiple of the mesh's size. It is also gathered, with a warning, if
    product_placements does not allow its placement. An operand of partial sums is summed over the ranks first. A dimension of size 1 that
    is broadcast must be replicated beforehand, because torch cannot expand a sharded dimension.

    If model_new.py is executed again, it defines the operators anew, and register() has to be called again.
    """
    register_sharding(torch.ops.tril_matmul.product.default)(product_placements)
    register_sharding(torch.ops.tril_matmul.inverse.default)(inverse_placements)


# ---- (b) One product: the order of its columns. ----------------------------------------------------------------------
#
# Column j of tril(A) tril(B) takes about (N - j)^2 / 2 multiply-adds. The first half of the columns therefore has 7/8 of the work.
#
# To spread the work evenly over the ranks, the columns are cut into 2 * world * folds blocks of equal width. A fold is 2 * world
# consecutive blocks. Its first `world` blocks go to the ranks 0, 1, .., world - 1, and its other blocks to the ranks world - 1, .., 1, 0.
# In every second fold the order of the ranks is reversed. The two opposite orders in a fold even out work that falls linearly. The reversal
# in every second fold evens out most of the remaining difference. With two ranks and two folds, both ranks have the same work. The folded
# order lists the blocks of rank 0 first, then the blocks of rank 1, and so on.


def blocks_of(rank, world, folds):
    """Returns the numbers of a rank's blocks in ascending order."""
    there_and_back = [*range(world), *reversed(range(world))]
    owners = [world - 1 - owner if fold % 2 else owner for fold in range(folds) for owner in there_and_back]
    return [block for block, owner in enumerate(owners) if owner == rank]


def folded_order(N, world, folds):
    """Returns, for each column of the folded order, its number in the matrix. N must be a multiple of 2 * world * folds."""
    if world < 1 or folds < 1 or N % (2 * world * folds):
        raise ValueError(f"column_parallel: {N} columns cannot be cut into 2 * {world} * {folds} blocks (ranks, folds) of equal width")
    blocks = torch.arange(N).view(2 * world * folds, N // (2 * world * folds))
    return blocks[[block for rank in range(world) for block in blocks_of(rank, world, folds)]].flatten()


def fold(T, world, folds):
    """Returns the columns of a matrix (N, N) in the folded order. distribute_tensor(.., mesh, [Shard(1)]) then gives each rank its
    blocks."""
    return T[:, folded_order(T.shape[1], world, folds).to(T.device)]


def unfold(T, world, folds):
    """Returns the columns of a matrix in their original order. It undoes fold()."""
    return T[:, folded_order(T.shape[1], world, folds).argsort().to(T.device)]


def multiply_adds(N, world, folds):
    """Returns the number of multiply-adds of each rank. It is the sum of (N - j) (N - j + 1) / 2 over the rank's columns j."""
    heights = N - folded_order(N, world, folds)
    return (heights * (heights + 1) // 2).view(world, -1).sum(1).tolist()


# ---- (b) One product: a rank's columns. ------------------------------------------------------------------------------


class ColumnBlocks(torch.autograd.Function):
    """Computes C = tril(A) tril(B) for the columns of one rank. A is (N, N). B and C are (N, width * number of blocks).

    A block of columns has a diagonal block, and zeros above it. Let 1 stand for the rows of the diagonal block, and 2 for the rows below.
    Then

        C1 = tril(A11) tril(B1),    C2 = A21 tril(B1) + tril(A22) B2

    These products leave out all terms that contain a zero of a triangle. With eight blocks, a single triangular_matmul(A, tril(B)) over the
    rows from the diagonal block on would do a fifth more work. This class is an autograd.Function, because its forward pass can write
    slices of C in place. With ordinary operations autograd would copy C twice to join the slices.
    """

    @staticmethod
    def parts(N, starts, columns):
        """Yields three slices for each block: its columns in B and C, the rows of its diagonal block, and the rows below. `starts` has the
        first column of each block in the whole matrix, which is also the first row of the diagonal block."""
        width = columns // len(starts)
        for number, start in enumerate(starts):
            yield slice(number * width, (number + 1) * width), slice(start, start + width), slice(start + width, N)

    @staticmethod
    def forward(ctx, A, B, starts):
        ctx.save_for_backward(A, B)
        ctx.starts = starts
        C = torch.zeros_like(B)
        for block, diagonal, below in ColumnBlocks.parts(A.shape[0], starts, B.shape[1]):
            C[diagonal, block] = tril_matmul(A[diagonal, diagonal], B[diagonal, block])
            first = triangular_matmul(B[diagonal, block], A[below, diagonal], left=False)
            torch.add(first, triangular_matmul(A[below, below], B[below, block]), out=C[below, block])
        return C

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, G):
        """Computes dA and dB as sums of masked products, by the operator tril_matmul.product."""
        A, B = ctx.saved_tensors
        dA, dB = torch.zeros_like(A), torch.zeros_like(B)

        def product(X, Y, contraction, x, y, c):
            return torch.ops.tril_matmul.product(X, Y, contraction, model_new._masked(x, y, c))

        for block, diagonal, below in ColumnBlocks.parts(A.shape[0], ctx.starts, B.shape[1]):
            dA[diagonal, diagonal] += product(G[diagonal, block], B[diagonal, block], NT, LOWER, LOWER, LOWER)
            dA[below, diagonal] += product(G[below, block], B[diagonal, block], NT, ALL, LOWER, ALL)
            dA[below, below] += product(G[below, block], B[below, block], NT, ALL, ALL, LOWER)
            dB[diagonal, block] = product(A[diagonal, diagonal], G[diagonal, block], TN, LOWER, LOWER, LOWER)
            dB[diagonal, block] += product(A[below, diagonal], G[below, block], TN, ALL, ALL, LOWER)
            dB[below, block] = product(A[below, below], G[below, block], TN, LOWER, ALL, ALL)
        return dA, dB, None


def column_parallel(A, B, mesh, folds=2):
    """Computes C = tril(A) tril(B). Each rank computes its own columns.

    Args:
        A: A DTensor (N, N). If it is not replicated, it is gathered.
        B: A DTensor (N, N) with columns in the folded order (see fold). It is sharded over its columns, [Shard(1)].
        mesh: A DeviceMesh with one dimension.
        folds: The number of folds. More folds spread the work more evenly, but the products are smaller. With two ranks, two folds
            already spread it evenly. N must be a multiple of 2 * mesh.size() * folds.

    Returns:
        A DTensor C, which has the folded order and the placement of B.

    If A is replicated, the forward pass needs no communication. In the backward pass dB stays where B is. Each rank computes the
    contribution of its columns to dA, and one all-reduce of N * N elements adds the contributions. C is differentiable once.
    """
    if mesh.ndim != 1:
        raise ValueError(f"column_parallel: mesh must have one dimension, but has shape {tuple(mesh.shape)}")
    for name, T in (("A", A), ("B", B)):
        if not isinstance(T, DTensor):
            raise TypeError(f"column_parallel: {name} must be a DTensor (see distribute_tensor), but is {type(T).__name__}")
        if T.ndim != 2 or T.shape[0] != T.shape[1] or T.shape != A.shape:
            shapes = f"{tuple(A.shape)} and {tuple(B.shape)}"
            raise ValueError(f"column_parallel: A and B must be (N, N), but are {shapes}; for batches see register")
    if tuple(B.placements) != (Shard(1),):
        raise ValueError(f"column_parallel: B must be sharded over its columns, [Shard(1)], but is placed {list(B.placements)}")
    N, world = A.shape[0], mesh.size()
    starts = folded_order(N, world, folds).view(world, 2 * folds, -1)[mesh.get_local_rank(), :, 0].tolist() if N else [0]
    local = local_map(
        lambda A, B: ColumnBlocks.apply(A, B, starts),
        out_placements=[Shard(1)],
        in_placements=([Replicate()], [Shard(1)]),
        in_grad_placements=([Partial()], [Shard(1)]),
        device_mesh=mesh,
    )
    # In the backward pass, redistribute turns the gradient of a replicated A from Partial into Replicate. This is the all-reduce.
    return local(A.redistribute(mesh, [Replicate()]), B)


# ---- The script. -----------------------------------------------------------------------------------------------------


def normal(*shape, seed, device):
    """Returns a tensor of normal values, which are the same on every rank."""
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(seed), device=device)


def with_gradients(function, *operands, G):
    """Returns the result of a function, and the gradients of its operands, where G is the gradient of the result."""
    operands = [T.detach().requires_grad_() for T in operands]
    C = function(*operands)
    return C.detach(), *torch.autograd.grad(C, operands, G)


def exact(A, B, G):
    """Returns C, dA and dB, computed in float64."""
    A, B, G = (T.double().tril() for T in (A, B, G))
    return A @ B, (G @ B.mT).tril(), (A.mT @ G).tril()


def slowest(call, device):
    """Returns the time of a call on the slowest rank, in ms. The calls are made in rows of five, as a training makes successive calls."""
    time_ms = torch.tensor(milliseconds(call, device, calls=5, in_a_row=5), device=device)
    dist.all_reduce(time_ms, op=dist.ReduceOp.MAX)
    return time_ms.item()


def largest_error(results, expected):
    return max(relative_error(result, expectation) for result, expectation in zip(results, expected, strict=True))


def measure_rows(what, alone, together, error, device):
    """Measures two rows of the table, prints them on rank 0 and returns them. The first row is for the forward pass, and the second one is
    for forward and backward. Each row compares the time on one device with the time on all devices."""
    rows = []
    for name, *calls in zip(("forward", "forward + backward"), alone, together, strict=True):
        one_ms, together_ms = (slowest(call, device) for call in calls)
        rows.append(
            {"what": what, "mode": name, "one_ms": one_ms, "together_ms": together_ms, "ratio": one_ms / together_ms, "norm_error": error}
        )
        if dist.get_rank() == 0:
            print(f"{f'{what}, {name}':<40} {one_ms:>10.3f} {together_ms:>10.3f} {one_ms / together_ms:>6.2f}x {error:>9.1e}")
    return rows


def batches(mesh, shape, device):
    """Measures a batch of products, sharded over its first dimension. Returns the table's rows."""
    A, B, G = (normal(*shape, seed=seed, device=device) for seed in range(3))
    a, b, g = (distribute_tensor(T, mesh, [Shard(0)], src_data_rank=None) for T in (A, B, G))
    alone = lambda: tril_matmul(A, B), lambda: with_gradients(tril_matmul, A, B, G=G)
    together = lambda: tril_matmul(a, b), lambda: with_gradients(tril_matmul, a, b, G=g)
    error = largest_error([T.full_tensor() for T in together[1]()], exact(A, B, G))
    return measure_rows(f"{' x '.join(map(str, shape))}, batch", alone, together, error, device)


def columns(mesh, N, folds, device):
    """Measures one product, sharded over its columns. Returns the table's rows."""
    world = mesh.size()
    A, B, G = (normal(N, N, seed=seed, device=device).tril_() for seed in range(3))
    a = distribute_tensor(A, mesh, [Replicate()], src_data_rank=None)
    b, g = (distribute_tensor(fold(T, world, folds), mesh, [Shard(1)], src_data_rank=None) for T in (B, G))

    def product(a, b):
        return column_parallel(a, b, mesh, folds)

    alone = lambda: tril_matmul(A, B), lambda: with_gradients(tril_matmul, A, B, G=G)
    together = lambda: product(a, b), lambda: with_gradients(product, a, b, G=g)
    C, dA, dB = together[1]()
    results = unfold(C.full_tensor(), world, folds), dA.full_tensor(), unfold(dB.full_tensor(), world, folds)
    error = largest_error(results, exact(A, B, G))
    del C, dA, dB, results  # frees memory: a float32 matrix of 32768 x 32768 takes 4.3 GB
    rows = measure_rows(f"{N} x {N}, columns", alone, together, error, device)
    buffer = torch.zeros_like(A)
    all_reduce_ms = slowest(lambda: dist.all_reduce(buffer), device)
    rows[-1]["all_reduce_ms"] = all_reduce_ms
    work = multiply_adds(N, world, folds)
    if dist.get_rank() == 0:
        print(f"of which the all-reduce of dA, {buffer.nbytes / 1e6:.1f} MB: {all_reduce_ms:.3f} ms;", end=" ")
        print(f"the busiest rank has {max(work) * world / sum(work):.3f} of the mean work")
    return rows


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, metavar="N", help="the size of one product (default 8192, on a CPU 1024)")
    parser.add_argument("--folds", type=int, default=2, help="each rank has twice this many blocks of columns (default 2)")
    parser.add_argument(
        "--batch",
        type=int,
        nargs=2,
        metavar=("BATCH", "N"),
        help="the number of products in a batch and their size (default 512 512, on a CPU 16 64)",
    )
    add_device(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="a JSON file to which the table's rows are also written")
    options = parser.parse_args(arguments)
    if options.size is None:
        options.size = 8192 if options.device == "cuda" else 1024
    options.batch = options.batch or ((512, 512) if options.device == "cuda" else (16, 64))
    world = int(os.environ.get("WORLD_SIZE", 1))  # torchrun sets WORLD_SIZE
    if min(options.size, options.folds) < 1 or options.size % (2 * world * options.folds):
        message = f"--size {options.size} --folds {options.folds} is given, with {world} rank{'' if world == 1 else 's'}"
        parser.error(f"{message}; a multiple of 2 * ranks * folds is accepted as --size, and --folds from 1 on")
    if min(options.batch) < 1:
        parser.error(f"argument --batch: {options.batch[0]} {options.batch[1]} is given; two positive numbers are accepted")
    if options.json and not options.json.absolute().parent.is_dir():  # checked here, so that an error comes before the work
        parser.error(f"argument --json: {options.json} is given; a file in an existing folder is accepted")
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    cuda = options.device == "cuda"
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast, which not every host allows
    backend, alone = "nccl" if cuda else "gloo", "RANK" not in os.environ  # torchrun sets RANK
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group(backend, **({"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {}))
    try:
        mesh, (batch, n) = init_device_mesh(options.device, (dist.get_world_size(),)), options.batch
        register()
        if dist.get_rank() == 0:
            ranks = "1 rank" if mesh.size() == 1 else f"{mesh.size()} ranks"
            print(f"{ranks} on {name_of(options.device)}, {backend}, torch {torch.__version__}, float32; times in ms")
            print(f"{'':<40} {'one':>10} {'together':>10} {'ratio':>7} {'error':>9}")
        rows = batches(mesh, (batch, n, n), options.device)
        rows += columns(mesh, options.size, options.folds, options.device)
        if options.json and dist.get_rank() == 0:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
        # If a thread of gloo releases tensors while Python ends, the process aborts. The barrier and the pause prevent that. The cause is
        # not model_new.py: in torch 2.13 the process also aborts if only torch's own operators use DTensors.
        dist.barrier()
        time.sleep(0.1)
    finally:
        dist.destroy_process_group()
    return int(not all(row["norm_error"] <= LARGEST_ERROR for row in rows))


if __name__ == "__main__":
    sys.exit(main())
