"""Runs compute-sanitizer over every kernel: memcheck, racecheck, initcheck and synccheck. It takes minutes, and needs the CUDA toolkit and
a GPU of compute capability 9.0.

    python tests/sanitize.py                      all four tools, all kernels, eight processes side by side
    python tests/sanitize.py memcheck             one tool, all kernels
    python tests/sanitize.py initcheck exact      one tool, one kernel
    python tests/sanitize.py --parallel 4 --seconds 300 --json benchmarks/results/sanitizers.json

The kernels are exact, tf32, mma, hopper (the fp16x3 kernel), hopper_tf32, half (the 16-bit kernel), half_shared, half_many, half_batches,
half_large, and family, which means gram and inverses. The names with an underscore are further products of hopper and of half.

Each pair of a tool and a kernel runs in a process of its own, with a time limit. When it ends, a line says whether the pair is clean, how
many errors the tool found, or why there is no result, such as a lack of time or of memory. At the end, a table has one row per kernel and
one column per tool. --json also writes the results to a file, after each pair. Results of other pairs stay in that file if they are of the
same model_new.py on the same kind of device.

pytest does not run this file, because the tools slow a kernel down a hundredfold. The exit status is 0 if every pair is clean, and 1 if a
pair is not clean. It is 2 if an argument is wrong, if compute-sanitizer is not found, or if a build fails.

racecheck and initcheck run copies of model_new.py. A copy defines one of the macros that the hooks in _CUDA_TYPES test.

The copy for racecheck defines TRIL_MATMUL_RACECHECK. racecheck (of CUDA 13.0) follows an mbarrier only for the threads that arrive at it
themselves. In the fp16x3 kernel and the 16-bit kernel, the lanes of a warp read and meet at a __syncwarp, and then one lane arrives for all
lanes. racecheck reports this correct pattern as a race. It does so even in a kernel of 20 lines that has only this pattern, and it reports
nothing if every lane arrives. So in the copy every lane arrives. When the consumer warps of the 16-bit kernel sum exactly, they meet at a
named barrier that the other warps of the CTA do not use. racecheck cannot follow such a barrier. In the copy the consumers meet at an
mbarrier instead.

The copy for initcheck defines TRIL_MATMUL_INITCHECK. initcheck has to watch every kernel, including torch's. If it skipped a kernel, it
would report the data that this kernel has written as uninitialized. In the copy, two things are set to zero beforehand. The first is the
words of the workspace in which a kernel looks for the number of its launch, to see whether another CTA has written there. The second is the
padding of an operand that is copied so that its lines begin at multiples of 16 bytes. A kernel tells cp.async how many of the last 16 bytes
of a line to read, but initcheck sees a read of all 16.

torch's caching allocator is off, so that every tensor is an allocation of its own. The tools then detect a read beyond a tensor's end, and
a read before the tensor was written.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import helpers
from helpers import DENSE, FAMILY, LOWER, MASKED, NN, NT, SYMMETRIC, TN, UPPER, masks, sizes_for

FILE = Path(__file__).resolve().parent.parent / "model_new.py"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# For these tools, this line replaces the line `// [hooks]` of model_new.py. For the other tools no macro is defined.
HOOKS = {"racecheck": "#define TRIL_MATMUL_RACECHECK", "initcheck": "#define TRIL_MATMUL_INITCHECK"}
EXACT_SIZES = (1, 63, 257)  # one element, less than a tile, no multiple of a tile
TF32_SIZES = (450, 576)  # rows that cannot be copied 16 bytes at a time, and rows that can
# The sizes from HALF_SIZE to HALF_TWICE are for the 16-bit kernel. The comments name the tiles that choose_sixteen_bit_tiles chooses on a
# GPU with 132 SMs. tests/test_sizes.py checks most of these tiles.

# All tiles have 128 x 128 elements and are halved. One CTA computes each half.
HALF_SIZE = 136
# K, M and N. Two CTAs share the k of each tile. This is also the case if one operand is a K x K triangle.
HALF_SHARED = (2000, 100, 136)
HALF_LONG = (4100, 100, 136)  # K, M and N; four CTAs share the k of each tile
# The number of products in a batch, and N. There are more tiles of 128 x 128 than SMs. So some CTAs compute several tiles, and reuse the
# stages of their pipelines across tiles.
HALF_MANY = (22, 450)
# The number of products in a batch, and N. If the matrices are triangles, most clusters compute several tiles of 256 x 256. These tiles
# have only a few k-blocks: at most three for the first size, and at most five for the second size.
HALF_BATCHES = ((121, 136), (130, 257))
# The arguments N, R and batch of others(). The tiles of X X^T have 128 x 128 elements. All other products have tiles of 256 x 256.
HALF_OTHERS = (385, 100, 80)
# For this N the tiles have 256 x 256 elements. The first tiles are halved. The tiles at the lower edge of C have only one row.
HALF_LARGE = 3329
# L L^T of this size is computed in its lower half, and `mirror` copies this half to the upper half. `mirror` copies by vectors. Only the
# blocks on the diagonal and at the lower edge of C are copied by elements.
HALF_MIRRORED = 2056
# M and K of X X^T. Half of C is computed and stored twice. The three sizes use tiles of 128 x 128, such tiles with diagonal pairs, and
# tiles of 256 x 256.
HALF_TWICE = ((1801, 72), (2041, 72), (2297, 72))
# In float32 and float64, CTAs of a cluster share the k of tiles. No block divides the edge of the matrix.
MMA_SIZES = (136, 200)
HOPPER_SIZE = 1300  # tiles are split along k, and no block divides the edge of the matrix

# These products have masks that FAMILY does not have. There is one product for each combination of masks that a kernel treats differently,
# in the order of tiles, in what is masked, or in what is written above the diagonal of C. Products that differ from these only in the
# contraction (NN, NT or TN) are left out: a contraction changes only the layouts of operands, which FAMILY covers. The comments on X X^T
# and L L^T do not apply to small 16-bit products, which the kernels compute as if C had no mask.
OTHERS = (
    "L X",  # X has a mask, and tiles are ordered by rows
    "X L",  # Y has a mask, and tiles are ordered by columns
    "L U",  # X and Y have masks, and C has none; the tile at the lower right of C has the longest sum
    "U L",  # X and Y have masks, and C has none; the tile at the upper left of C has the longest sum
    "X X^T",  # C is symmetric, and no operand is masked; tiles are ordered by diagonals, and the one operand is packed once
    "L L^T",  # C is symmetric, and both operands are masked; tiles are ordered as for NT in FAMILY, and none lies above the diagonal
    "tril(X Y^T)",  # no operand is masked, and zeros are written above the diagonal of C
    "tril(X L)",  # Y and C are masked, and each later column of tiles has fewer tiles
)
# The name of each of our kernels contains one of these words. All tools but initcheck watch only kernels with such names, and so skip
# torch's kernels.
NAMED = (
    "exact",
    "tf32",
    "tile_product",
    "mma",
    "fixup",
    "pack",
    "mirror",
    "invert",
)


computed = set()  # the names that explain() gives to the kernels that have computed a product


def finite(torch, module, X, Y, contraction, structure):
    """Computes one product, waits for it, and returns whether all of the result is finite.

    The product's description is printed first. If a tool hangs, the last printed line then says which product hangs.
    """
    print("computing", contraction, structure, X.dtype, tuple(X.shape), tuple(Y.shape), flush=True)
    C, path, _ = module._built().product(X, Y, contraction, structure, module._PATH, False)
    computed.add(path)
    torch.cuda.synchronize()
    return torch.isfinite(C).all()


def others(torch, module, N, R, dtype, *batch, names=OTHERS):
    """Computes the products that `names` lists, and yields for each whether its result is finite. Triangular and symmetric matrices have
    side N. R is the remaining side, if there is one."""
    for name in names:
        contraction, structure = MASKED[name]
        M, cols, K = sizes_for(structure, N, R)
        X = torch.randn(*batch, M, K, device="cuda").to(dtype)
        Y = torch.randn(*batch, *((cols, K) if contraction == NT else (K, cols)), device="cuda").to(dtype)
        X[..., M - 1, 0] = Y[..., 64, 0] = 1e-10  # the fp16x3 kernel treats them as outliers, where a mask has them
        yield finite(torch, module, X, X if masks(structure)[2] == SYMMETRIC else Y, contraction, structure)


def exact(torch, module):
    """Computes the products of FAMILY and OTHERS in float32 and in float64."""
    module._PATH = module._PATHS["exact"]
    for dtype in (torch.float32, torch.float64):
        for N in EXACT_SIZES:
            X, Y = (torch.randn(N, N, device="cuda", dtype=dtype) for _ in range(2))
            assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
        assert all(others(torch, module, 130, 70, dtype))


def tf32(torch, module):
    """Computes the products of FAMILY and OTHERS, and products with an Inf.

    The products of FAMILY are also computed with X stored by columns, as a batch, and with large elements. Sums of the large elements
    overflow when the kernel scales the elements by kTf32Scale.
    """
    for N in TF32_SIZES:
        X, Y = (torch.randn(N, N, device="cuda") for _ in range(2))
        assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
        assert all(finite(torch, module, X.mT, Y, *member) for member in FAMILY)
        assert all(finite(torch, module, X.expand(2, N, N), Y.expand(2, N, N), *member) for member in FAMILY)
        assert all(finite(torch, module, 1e30 * X, Y, *member) for member in FAMILY)
        X[N - 1, N - 1] = float("inf")
        assert not finite(torch, module, X, Y.mT, NN, LOWER)
    assert all(others(torch, module, TF32_SIZES[0], 300, torch.float32))


def hopper_operands(torch):
    X, Y = (torch.randn(HOPPER_SIZE, HOPPER_SIZE, device="cuda") for _ in range(2))
    X[700, 3] = Y[900, 800] = 1e-6  # each makes its block wide; kTolerance in model_new.py explains wide blocks
    X[701, 3] = Y[900, 801] = 1e-10  # each is an outlier
    return X, Y


def hopper_tf32(torch, module):
    """Computes the products of FAMILY and OTHERS, and gradients, with TF32. The scales of blocks differ little or by many powers of two."""
    module._PATH = module._PATHS["hopper"]
    X, Y = hopper_operands(torch)
    torch.set_float32_matmul_precision("high")
    for Z in (X, X * torch.logspace(-3, 3, HOPPER_SIZE, device="cuda")):
        assert all(finite(torch, module, Z, Y, *member) for member in FAMILY)
    assert all(others(torch, module, HOPPER_SIZE, 700, torch.float32))
    P, Q = X.clone().requires_grad_(), Y.clone().requires_grad_()
    assert all(torch.isfinite(G).all() for G in torch.autograd.grad(module.tril_matmul(P, Q).sum(), (P, Q)))


def hopper(torch, module):
    """Computes the products of FAMILY and OTHERS, gradients, batches and fallbacks. The operands have wide blocks and outliers."""
    module._PATH = module._PATHS["hopper"]
    X, Y = hopper_operands(torch)
    assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
    assert all(others(torch, module, HOPPER_SIZE, 700, torch.float32))
    P, Q = X.clone().requires_grad_(), Y.clone().requires_grad_()
    assert all(torch.isfinite(G).all() for G in torch.autograd.grad(module.tril_matmul(P, Q).sum(), (P, Q)))
    both = torch.stack([X, Y])
    assert finite(torch, module, both, Y.expand_as(both), NN, LOWER) and finite(torch, module, X.expand_as(both), both, TN, DENSE)
    P, Q = both.clone().requires_grad_(), Y.clone().requires_grad_()
    assert all(torch.isfinite(G).all() for G in torch.autograd.grad(module.tril_matmul(P, Q).sum(), (P, Q)))
    X[5, 3] = both[1, 5, 3] = float("inf")  # so that fixup_kernel computes these products as the fallback
    assert not finite(torch, module, X, Y, NN, LOWER) and not finite(torch, module, both, Y.expand_as(both), NN, LOWER)


def half(torch, module):
    """Computes products in which one CTA computes each half of a tile of 128 x 128.

    Both dtypes compute the products of FAMILY. These use every instance of the kernel for tiles of 128 x 128, except those that store C
    twice. Both dtypes also compute a product whose sums contain a NaN, so that tiles are summed again. The remaining products do not depend
    on the dtype, and are computed in float16 alone. Together with FAMILY, transposed operands with masks use every way to mask a block.
    Further products are the products of OTHERS, a product of parts of larger matrices, and a batch. In some products of OTHERS, an operand
    has to be copied first, and C is written by elements.
    """
    module._PATH = module._PATHS["hopper"]  # so that small products use this kernel, too
    for dtype in (torch.bfloat16, torch.float16):
        X, Y = (torch.randn(HALF_SIZE, HALF_SIZE, device="cuda").to(dtype) for _ in range(2))
        assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
        unfit = X.clone()
        unfit[-1, -1] = float("inf")
        assert not finite(torch, module, unfit, Y.mT, NN, LOWER)
    assert all(finite(torch, module, X.mT, Y, *member) for member in FAMILY if member[1])
    assert finite(torch, module, X[:-3, :-3], Y[:-3, :-3], NN, LOWER)
    assert all(others(torch, module, 200, 150, torch.float16))
    assert finite(torch, module, X.expand(3, *X.shape), Y.expand(3, *Y.shape), NN, LOWER)


def half_shared(torch, module):
    """Computes products in which two or four CTAs share the k of a tile and add their sums.

    The last three products have a triangular operand. In the last product some sums are NaN, so that tiles are summed again.
    """
    module._PATH = module._PATHS["hopper"]  # so that small products use this kernel, too
    for K, M, N in (HALF_SHARED, HALF_LONG):
        X, Y = torch.randn(K, M, device="cuda").half(), torch.randn(K, N, device="cuda").half()
        assert all(finite(torch, module, *given, DENSE) for given in ((X, Y, TN), (X.mT, Y, NN), (X.mT, Y.mT, NT)))
    K, R, _ = HALF_SHARED
    assert all(others(torch, module, K, R, torch.float16, names=OTHERS[:2]))
    L, X = torch.randn(K, K, device="cuda").half(), torch.randn(K, R, device="cuda").half()
    L[-1, -1] = float("inf")
    assert not finite(torch, module, L, X, *MASKED["L X"])


def half_many(torch, module):
    """Computes products in which some CTAs compute several tiles of 128 x 128, one after the other.

    The kernel stores the C of lower triangles by rows. For upper triangles it computes C^T, and stores C^T by columns.
    """
    module._PATH = module._PATHS["hopper"]  # so that small products use this kernel, too
    batch, N = HALF_MANY
    X, Y = (torch.randn(batch, N, N, device="cuda").half() for _ in range(2))
    assert finite(torch, module, X, Y, NN, LOWER) and finite(torch, module, X, Y, NN, UPPER)


def half_batches(torch, module):
    """Computes batches in which most clusters compute several tiles of 256 x 256, one after the other.

    It computes the products of FAMILY and OTHERS. The dense products with N = 257 and X X^T are exceptions: their tiles are 128 x 128. For
    each size and dtype, one product has an Inf.
    """
    module._PATH = module._PATHS["hopper"]  # so that small products use this kernel, too
    for (batch, N), dtype in itertools.product(HALF_BATCHES, (torch.float16, torch.bfloat16)):
        X, Y = (torch.randn(batch, N, N, device="cuda").to(dtype) for _ in range(2))
        assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
        assert all(finite(torch, module, X.mT, Y, *member) for member in FAMILY if member[1] != UPPER)
        X[1, N - 1, N - 1] = float("inf")
        assert not finite(torch, module, X, Y, NN, LOWER)
    N, R, batch = HALF_OTHERS
    assert all(others(torch, module, N, R, torch.float16, batch))


def half_large(torch, module):
    """Computes C and dB of large triangles, whose first tiles are halved, and symmetric products, of which half is computed.

    The kernel stores that half twice, or a launch of `mirror` copies it.
    """
    module._PATH = module._PATHS["hopper"]  # so that small products use this kernel, too
    X, Y = (torch.randn(HALF_LARGE, HALF_LARGE, device="cuda").half() for _ in range(2))
    assert finite(torch, module, X, Y, NN, LOWER) and finite(torch, module, X, Y, TN, LOWER)
    for M, K in HALF_TWICE:
        X, Y = (torch.randn(*shape, device="cuda").half() for shape in ((M, K), (K, M)))
        assert finite(torch, module, X, X, *MASKED["X X^T"]) and finite(torch, module, Y, Y, *MASKED["X^T X"])
    L = torch.randn(HALF_MIRRORED, HALF_MIRRORED, device="cuda").half()
    assert finite(torch, module, L, L, *MASKED["L L^T"])


def mma(torch, module):
    """Computes the products of FAMILY and OTHERS in all four dtypes.

    For each dtype it also computes a product of parts of larger matrices, a batch, and a product with an Inf. Tiles whose sums are not
    finite are summed again. In 16-bit types, some operands of OTHERS have to be copied first.
    """
    module._PATH = module._PATHS["mma"]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for N in MMA_SIZES:
            X, Y = (torch.randn(N, N, device="cuda").to(dtype) for _ in range(2))
            assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
            assert all(finite(torch, module, X.mT, Y, *member) for member in FAMILY)
            assert finite(torch, module, X[:-3, :-3], Y[:-3, :-3], NN, LOWER)
            assert finite(torch, module, X.expand(3, N, N), Y.expand(3, N, N), NN, LOWER)
            X[N - 1, N - 1] = float("inf")
            assert not finite(torch, module, X, Y.mT, NN, LOWER)
        assert all(others(torch, module, 200, 70, dtype))


def family(torch, module):
    """Computes small symmetric products and inverses, at sizes that no block divides, and in batches.

    The symmetric products are computed whole in float16. In float32 and float64, half of C is computed and stored twice. Inverses are
    computed in float32 and float64. They have several blocks, and the given matrices are stored by rows or by columns.
    """
    for dtype, path in ((torch.float16, "hopper"), (torch.float32, "auto"), (torch.float64, "auto")):
        module._PATH = module._PATHS[path]
        for X in (torch.randn(200, 70, device="cuda"), torch.randn(3, 70, 65, device="cuda")):
            assert all(torch.isfinite(module.gram(X.to(dtype), transpose=transpose)).all() for transpose in (False, True))
    for dtype, unit in itertools.product((torch.float32, torch.float64), (False, True)):
        for shape in ((200, 200), (3, 65, 65)):
            L = torch.randn(*shape, device="cuda", dtype=dtype) / shape[-1] + torch.eye(shape[-1], device="cuda", dtype=dtype)
            assert all(torch.isfinite(module.triangular_inverse(given, unitriangular=unit)).all() for given in (L, L.mT.contiguous().mT))


EVERY = (exact, tf32, hopper, hopper_tf32, half, half_shared, half_many, half_batches, half_large, mma, family)
KERNELS = {of.__name__: of for of in EVERY}


def copy_for(text, *tools):
    """Returns the text of model_new.py in which the macros of these tools are defined. HOOKS has the macros."""
    return helpers.hooked(text, "\n".join(HOOKS[tool] for tool in tools if tool in HOOKS))


def load(tool):
    """Executes the copy of model_new.py for the tool, and returns it as a module."""
    module = types.ModuleType("sanitized")
    exec(compile(copy_for(FILE.read_text(), tool), str(FILE), "exec"), module.__dict__)
    return module


def child(tool, kernels):
    """Loads the copy for `tool`, which builds it, and runs the functions of KERNELS that `kernels` names.

    A tool watches this process. If `kernels` is empty, the process only builds, and no tool watches it.
    """
    import torch

    module = load(tool)
    for name in kernels:
        module._PATH = module._PATHS["auto"]
        computed.clear()
        KERNELS[name](torch, module)
        print("computed by", ", ".join(sorted(computed)), flush=True)
        # `family` calls public functions, which do not tell which kernel they use.
        expected = set() if name == "family" else {name.partition("_")[0]}
        assert computed == expected, f"{name} has to be computed by one kernel"


# ---- Running the pairs of a tool and a kernel side by side. ----------------------------------------------------------

ENVIRONMENT = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def run_child(before, tool, kernels, seconds):
    """Runs child() in a new process. The command `before` starts a tool that watches the process, unless `before` is empty.

    Returns the exit status and the printed text. The exit status is None if the process ran out of time.
    """
    command = [*before, sys.executable, __file__, "--child", tool, *kernels]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT, start_new_session=True
    )
    try:
        printed = process.communicate(timeout=seconds)[0]
        return process.returncode, printed
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # ends the tool and the Python process that the tool runs
        return None, process.communicate()[0]


def found(printed):
    """Returns the number of errors or hazards in a tool's summary."""
    return sum(map(int, re.findall(r"SUMMARY: (\d+) (?:errors?|hazards?)", printed)))


def look(tool, kernel, seconds):
    """Runs one pair and returns its row."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
    # synccheck has to track the mbarriers of all CTAs. Its default limit is the number of places in the code that initialize an mbarrier.
    if tool == "synccheck":
        command += ["--num-cuda-barriers", "65536"]
    for name in () if tool == "initcheck" else NAMED:
        command += ["--kernel-name", f"kns={name}"]
    start = time.perf_counter()
    status, printed = run_child(command, tool, [kernel], seconds)
    number = found(printed)
    whole = "Detected overflow of tracked" not in printed  # this message says that the tool did not track some barriers
    clean = status == 0 and not number and whole
    # If the GPU lacks memory, perhaps because other processes use it, the pair shows neither that the kernel is clean nor that it is not.
    short = re.search("out of memory|Unable to allocate enough memory", printed)
    said = "timed out" if status is None else "no memory" if short else "clean" if clean else f"{number} found" if number else "failed"
    row = {"tool": tool, "kernel": kernel, "result": said, "found": number, "seconds": round(time.perf_counter() - start, 1)}
    row["printed"] = [line for line in printed.splitlines() if "SUMMARY" in line or "computed by" in line]
    print(f"{tool:<12}{kernel:<14}{said:<12}{row['seconds']:>8} s   {'; '.join(row['printed'])}", flush=True)
    # The first findings say which kernel, thread and address are wrong. The last line "computing" says in which product a pair ran
    # out of time.
    if said != "clean":
        lines = [line for line in printed.splitlines() if "Host Frame" not in line and not line.startswith("computing")]
        lines += [line for line in printed.splitlines() if line.startswith("computing")][-1:]
        print("\n".join([*lines[:60], *lines[60:][-20:]]), flush=True)
    return row


def in_order(rows):
    return sorted(rows, key=lambda row: (TOOLS.index(row["tool"]), list(KERNELS).index(row["kernel"])))


def write(path, rows):
    """Writes the record for benchmarks/tables.py.

    The record has `rows`, and the rows of other pairs that are already at `path`, if they are of the same model_new.py and kind of device.
    """
    benchmark = helpers.module("benchmark")
    about = benchmark.environment(types.SimpleNamespace(on_gpu=True, solution_file=FILE, trials=None, seed=None))
    rows = [{**row, "solution_sha256": about["solution_sha256"], "device": about["device"]} for row in rows]
    rows = in_order({(row["tool"], row["kernel"]): row for row in benchmark.earlier_rows(path, about) + rows}.values())
    record = {"suite": "sanitizers", **about, "complete": len(rows) == len(TOOLS) * len(KERNELS), "failures": [], "rows": rows}
    path.write_text(json.dumps(record, indent=1) + "\n")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"tools ({', '.join(TOOLS)}) and kernels ({', '.join(KERNELS)}); default all"
    )
    parser.add_argument("--parallel", type=int, default=8, metavar="N", help="processes side by side (default 8)")
    parser.add_argument("--seconds", type=float, default=480.0, help="that a pair may take (default 480)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where the rows are written, too")
    given = parser.parse_args(arguments)
    for name in given.names:
        if name not in TOOLS and name not in KERNELS:
            parser.error(f"unknown argument {name!r}; accepted: {', '.join([*TOOLS, *KERNELS])}")
    if given.parallel < 1 or given.seconds <= 0:
        parser.error("arguments --parallel and --seconds: accepted are numbers above 0")
    if not shutil.which("compute-sanitizer"):
        parser.error("compute-sanitizer is not on PATH")
    return given


def main(arguments=None):
    given = parse_arguments(arguments)
    tools = [tool for tool in TOOLS if tool in given.names] or list(TOOLS)
    kernels = [kernel for kernel in KERNELS if kernel in given.names] or list(KERNELS)
    # Tools with the same copy share one build. All copies are built before the pairs start, so that no pair waits for a build.
    copies = {copy_for(FILE.read_text(), tool): tool for tool in tools}
    with concurrent.futures.ThreadPoolExecutor(given.parallel) as pool:
        for status, printed in pool.map(lambda tool: run_child([], tool, [], 600), copies.values()):
            if status != 0:
                print(f"the build failed:\n{printed[-4000:]}", file=sys.stderr)
                return 2
        # racecheck is the slowest tool, so its pairs come first.
        pairs = sorted(itertools.product(tools, kernels), key=lambda pair: pair[0] != "racecheck")
        rows = []
        for done in concurrent.futures.as_completed([pool.submit(look, *pair, given.seconds) for pair in pairs]):
            rows.append(done.result())
            if given.json:
                write(given.json, rows)
    print("\n" + helpers.module("tables").sanitizers(in_order(rows)))
    return 0 if all(row["result"] == "clean" for row in rows) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
