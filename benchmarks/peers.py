"""Computes C = tril(A) tril(B) in ways that a user could pick instead of model_new.py, with nothing but what comes with torch.

PEERS maps the name of each way (a peer) to a function of A and B, which are contiguous N x N matrices with zeros above their diagonals.
Each of these functions does the work that is needed only once, such as looking up a library, compiling, or picking the fastest tile. It
returns a function without arguments, which computes C. If the peer is unavailable, it raises Unavailable with the reason. docs/results.md
describes each peer. `python benchmarks/benchmark.py --suite peers` checks and times the peers.

`ssyrk` is not in PEERS, because it computes another product: the lower triangle of X X^T, by cuBLAS. The suite `family` times it.
"""

import argparse
import contextlib
import ctypes
import functools
import itertools

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # only torch's CUDA builds for Linux bring Triton
    triton = None

BLOCK = 1024


class Unavailable(Exception):
    """Raised if a peer cannot compute with these operands or on this machine. The text says why."""


def _require(condition, reason):
    if not condition:
        raise Unavailable(reason)


@contextlib.contextmanager
def tf32_allowed():
    """Returns a context in which torch may use TF32 for float32 products."""
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high")
        yield


def tf32(A, B):
    _require(A.dtype == torch.float32, "TF32 is a setting for float32 alone")
    return tf32_allowed()(lambda: torch.tril(torch.matmul(A, B)))


def blocked(A, B):
    def product():
        C = torch.zeros_like(A)
        for k in range(0, A.shape[-1], BLOCK):
            C[k:, : k + BLOCK].addmm_(A[k:, k : k + BLOCK], B[k : k + BLOCK, : k + BLOCK])
        return C

    return product


# cuBLAS is called through ctypes. It reads matrices as column-major, so it sees the transposes of our row-major matrices. What is a lower
# triangle to us is therefore an upper triangle to cuBLAS.
_RIGHT, _UPPER, _NOT_TRANSPOSED, _TRANSPOSED, _NON_UNIT = 1, 1, 0, 1, 0  # values of the enums in cublas_api.h
_SCALARS = {torch.float32: ("S", ctypes.c_float), torch.float64: ("D", ctypes.c_double)}


def _by_cublas(name, *arguments):
    """Returns a function that calls a cuBLAS routine and returns the result C. The routine gets a handle and then `arguments`. The last
    argument but one is C. Python floats stand for the routine's scalars, such as alpha."""
    C = arguments[-2]
    _require(C.dtype in _SCALARS, f"cuBLAS has no {name} for {str(C.dtype)[6:]}")
    _require(C.is_cuda, "cuBLAS needs a CUDA GPU")
    letter, scalar = _SCALARS[C.dtype]
    # This call loads cuBLAS if nothing else has. The library's file name has the major version of CUDA.
    torch.cuda.current_blas_handle()
    routine = getattr(ctypes.CDLL(f"libcublas.so.{torch.version.cuda.split('.')[0]}"), f"cublas{letter}{name.lower()}_v2")
    converters = {torch.Tensor: lambda T: ctypes.c_void_p(T.data_ptr()), float: lambda value: ctypes.byref(scalar(value)), int: int}

    def product():
        handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
        if status := routine(handle, *(converters[type(argument)](argument) for argument in arguments)):
            raise RuntimeError(f"cuBLAS's {name} ended with status {status}")
        return C

    return product


def strmm(A, B):
    C, N = torch.empty_like(A), A.shape[-1]
    # cuBLAS reads row-major matrices as their transposes. So it computes C^T = B^T A^T, with the upper triangle A^T on the right.
    return _by_cublas("TRMM", _RIGHT, _UPPER, _NOT_TRANSPOSED, _NON_UNIT, N, N, 1.0, A, N, B, N, C, N)


def ssyrk(X):
    """Returns a function that computes the lower triangle of X X^T. Its result has zeros above the diagonal."""
    M, K = X.shape
    return _by_cublas("SYRK", _UPPER, _TRANSPOSED, M, K, 1.0, X, K, 0.0, X.new_zeros(M, M), M)


_CONFIGURATIONS = {  # bytes of an element: (rows, columns and k of a tile, warps, stages) of each configuration that is tried
    4: ((128, 128, 32, 8, 3), (128, 64, 32, 4, 3), (64, 64, 32, 4, 3), (64, 64, 64, 4, 2)),
    2: ((128, 256, 64, 8, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (64, 64, 64, 4, 4)),
}
_MULTIPLE = 256  # N has to be a multiple of this, so that no tile is cut

if triton is not None:

    @triton.jit
    def _tile(a, b, c, order, N, rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr):
        """Computes one tile of C = A B. `order` holds the row and the column of each tile, and the tile with the longest range of k comes
        first. For a tile above the diagonal the range of k is empty, so the tile is filled with zeros."""
        row = tl.load(order + 2 * tl.program_id(0)) * rows
        column = tl.load(order + 2 * tl.program_id(0) + 1) * columns
        i, j = row + tl.arange(0, rows), column + tl.arange(0, columns)
        total = tl.zeros((rows, columns), tl.float32)
        for begin in range(column, row + rows, depth):
            k = begin + tl.arange(0, depth)
            x = tl.load(a + i[:, None] * N + k[None, :])
            y = tl.load(b + k[:, None] * N + j[None, :])
            total = tl.dot(x, y, total, input_precision="tf32x3")  # 16-bit types ignore tf32x3
        tl.store(c + i[:, None] * N + j[None, :], total.to(c.dtype.element_ty))


def _tile_order(N, rows, columns, device):
    """Returns the row and the column of each tile of an N x N matrix, as a tensor (tiles, 2). Tiles with a longer sum over k come first."""
    tiles = itertools.product(range(N // rows), range(N // columns))
    return torch.tensor(sorted(tiles, key=lambda tile: min(0, tile[1] * columns - (tile[0] + 1) * rows)), dtype=torch.int32, device=device)


def triton_kernel(A, B):
    N = A.shape[-1]
    _require(A.is_cuda, "Triton needs a GPU")
    _require(triton is not None, "Triton is not installed; it comes with torch's CUDA builds for Linux")
    _require(A.element_size() in _CONFIGURATIONS, f"Triton's tensor-core product takes no {str(A.dtype)[6:]}")
    _require(N % _MULTIPLE == 0, f"this kernel is for N that are multiples of {_MULTIPLE}")

    def product(order, rows, columns, depth, warps, stages):
        C = torch.empty_like(A)
        _tile[(len(order),)](A, B, C, order, N, rows, columns, depth, num_warps=warps, num_stages=stages)
        return C

    times = {}
    for configuration in _CONFIGURATIONS[A.element_size()]:
        call = functools.partial(product, _tile_order(N, *configuration[:2], A.device), *configuration)
        with contextlib.suppress(triton.OutOfResources):  # a smaller GPU may lack the resources for this tile
            times[call] = triton.testing.do_bench(call, warmup=5, rep=25)
    _require(times, "none of this kernel's tiles fits this GPU")
    return min(times, key=times.get)


PEERS = {"tf32": tf32, "strmm": strmm, "blocked": blocked, "triton": triton_kernel}

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(__doc__)
