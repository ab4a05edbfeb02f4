"""compute-sanitizer over every kernel: memcheck, racecheck, initcheck, synccheck. Needs a GPU and the CUDA toolkit; takes minutes.

    python tests/sanitize.py                      all four tools, all kernels
    python tests/sanitize.py memcheck             some of the tools
    python tests/sanitize.py initcheck portable   some of the kernels: portable, tf32, hopper, half, mma

Not a test that pytest runs: the tools slow a kernel down a hundredfold. Exits 0 if every tool is clean, 1 if one is not, 2 if it
cannot run.

racecheck (of CUDA 13.0) does not follow all that these kernels do, and looks at a copy of the file that differs in that alone. It follows
an mbarrier only for the threads that arrive themselves. Where the lanes of a warp read, meet at a __syncwarp, and one of them arrives for
all, as the Hopper kernel and the half-precision one do, it reports a race that cannot be. (A kernel of 20 lines that does no more than that
is reported too, and is clean with an arrival of every lane.) In its copy every lane arrives.

initcheck has to watch every kernel, torch's too, or it holds what those write to be uninitialized.

Every tensor is an allocation of its own here (torch's caching allocator is off), so that a read beyond one, or before it was written,
shows.
"""

import itertools
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "model_new.py"
EMPTY = "address_in_peer(base + offsetof(Shared, empty) + 8 * stage"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
EVERY_COPY = (  # small products of the 16-bit types, too, are for the half-precision kernel: large ones would take the tools minutes
    ("return mma_beats_half(p, gpu) ? kMmaKernel : kHalfKernel;", "return mma_beats_half(p, gpu) ? kHalfKernel : kHalfKernel;"),
)
COPIED = {  # for a tool: what becomes of what, besides
    "racecheck": (
        (
            f"    const int lane = fresh_thread_index() % 32;\n    __syncwarp();\n    if (lane < 2) barrier_arrive_at({EMPTY}, lane));",
            f"    __syncwarp();\n    for (int rank = 0; rank < 2; ++rank) barrier_arrive_at({EMPTY}, rank));",
        ),
        (
            f"  auto release = [&](int stage) {{\n    __syncwarp();\n    if (lane < 2) barrier_arrive_at({EMPTY}, lane));",
            f"  auto release = [&](int stage) {{\n    __syncwarp();\n"
            f"    for (int rank = 0; rank < 2; ++rank) barrier_arrive_at({EMPTY}, rank));",
        ),
        (
            "barrier_init(&shared.empty[s], 2 * kConsumerWarps);",
            "barrier_init(&shared.empty[s], 2 * kConsumerWarps * 32);",
        ),
        # Half precision: who gives a stage back, who leaves one for C, who has masked one (or the producer, of one that needs none), who
        # takes a tile
        (
            "    if (lane < (kCooperation == kMulticast ? 2 : 1))\n"
            "      barrier_arrive_at(kCooperation == kMulticast ? address_in_peer(barrier, lane) : barrier);",
            "    for (int rank = 0; lane < 32 && rank < (kCooperation == kMulticast ? 2 : 1); ++rank)\n"
            "      barrier_arrive_at(kCooperation == kMulticast ? address_in_peer(barrier, rank) : barrier);",
        ),
        (
            "(kCooperation == kMulticast ? 2 : 1) * kConsumerWarps);",
            "(kCooperation == kMulticast ? 2 : 1) * kConsumerWarps * 32);",
        ),
        (
            "      if (lane == 0) barrier_arrive_at(shared_address(&shared.full[at.stage]));\n      __syncwarp();\n      at.advance();",
            "      for (int u = 0; u < 2; ++u) barrier_arrive_at(shared_address(&shared.full[at.stage]));\n      __syncwarp();\n"
            "      at.advance();",
        ),
        (
            "if (row == 0) barrier_arrive_at(shared_address(&shared.full[at.stage]));",
            "barrier_arrive_at(shared_address(&shared.full[at.stage]));",
        ),
        ("apply(&shared.full[s], 1);", "apply(&shared.full[s], 64);"),
        (
            "barrier_arrive_expect_tx(barrier, (has_x[0] + has_x[1] + Shared::kBlocksN) * kOperandBytes);",
            "barrier_arrive_expect_tx(barrier, (has_x[0] + has_x[1] + Shared::kBlocksN) * kOperandBytes);\n"
            "        for (int u = 1; u < 64 && barrier == &shared.full[at.stage]; ++u) barrier_arrive_at(shared_address(barrier));",
        ),
        (
            "if (threadIdx.x % 32 == 0) barrier_arrive_at(shared_address(&shared.tile_empty[at]));",
            "barrier_arrive_at(shared_address(&shared.tile_empty[at]));",
        ),
        ("apply(&shared.tile_empty[u], kTileTakers);", "apply(&shared.tile_empty[u], kTileTakers * 32);"),
    ),
}
SIZES = (1, 63, 257, 640)  # of the portable kernel: one element, less than a tile, no multiple of one, k-blocks for every team
TF32_SIZES = (450, 576)  # rows that cannot be copied 16 bytes at a time, and ones that can
HALF_SIZES = (136, 1500)  # CTAs that split k; clusters that share Y, in tiles of 128 columns with splits, and (dense) of 256
MMA_SIZES, MMA_LARGE = (136, 260), 2944  # tiles of 64, shared by clusters, with an edge that no block divides; tiles of 128
HOPPER_SIZE = 1300  # tiles in splits, an edge that no block divides

FAMILY = tuple(itertools.product((0, 1, 2), (0, 1, 2)))  # contractions and structures
NAMED = (
    "portable",
    "tf32",
    "hopper",
    "half",
    "mma",
    "behind",
    "pack",
    "reset",
)  # what the names of our kernels hold; torch's are not looked at


def finite(torch, module, X, Y, contraction, structure):
    """Computes one contraction, and waits. Whether all of the result is finite."""
    C = module._compute(X, Y, contraction, structure)
    torch.cuda.synchronize()
    return torch.isfinite(C).all()


def portable(torch, module):
    """Every contraction and structure, float32 and float64."""
    module._PATH = module._PORTABLE
    for N, dtype in itertools.product(SIZES, (torch.float32, torch.float64)):
        X, Y = (torch.randn(N, N, device="cuda", dtype=dtype) for _ in range(2))
        assert all(finite(torch, module, X, Y, *member) for member in FAMILY)


def tf32(torch, module):
    """Every contraction and structure, operands that lie the other way, a batch, sums beyond the first scale, and ones not finite."""
    for N in TF32_SIZES:
        X, Y = (torch.randn(N, N, device="cuda") for _ in range(2))
        assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
        assert all(finite(torch, module, X.mT, Y, *member) for member in FAMILY)
        assert all(finite(torch, module, X.expand(3, N, N), Y.expand(3, N, N), *member) for member in FAMILY)
        assert all(finite(torch, module, 1e30 * X, Y, *member) for member in FAMILY)
        X[N - 1, N - 1] = float("inf")
        assert not finite(torch, module, X, Y.mT, 0, 1)
    print("computed by", module.explain(Y, Y)["path"], flush=True)


def hopper(torch, module):
    """Every contraction and structure, with gradients, a batch, wide blocks, outliers, TF32 and a fallback."""
    X, Y = (torch.randn(HOPPER_SIZE, HOPPER_SIZE, device="cuda") for _ in range(2))
    X[700, 3] = Y[900, 800] = 1e-6  # a wide block
    X[701, 3] = Y[900, 801] = 1e-10  # outliers
    assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
    P, Q = X.clone().requires_grad_(), Y.clone().requires_grad_()
    assert all(torch.isfinite(G).all() for G in torch.autograd.grad(module.tril_matmul(P, Q).sum(), (P, Q)))
    both = torch.stack([X, Y])
    assert finite(torch, module, both, Y.expand_as(both), 0, 1) and finite(torch, module, X.expand_as(both), both, 2, 0)
    P, Q = both.clone().requires_grad_(), Y.clone().requires_grad_()
    assert all(torch.isfinite(G).all() for G in torch.autograd.grad(module.tril_matmul(P, Q).sum(), (P, Q)))
    torch.set_float32_matmul_precision("high")  # TF32, of blocks that have one scale, and of ones that have not
    assert all(
        finite(torch, module, Z, Y, *member) for Z in (X, X * torch.logspace(-3, 3, HOPPER_SIZE, device="cuda")) for member in FAMILY
    )
    torch.set_float32_matmul_precision("highest")
    X[5, 3] = both[1, 5, 3] = float("inf")  # a fallback: product_behind computes it
    assert not finite(torch, module, X, Y, 0, 1) and not finite(torch, module, both, Y.expand_as(both), 0, 1)
    print("computed by", module.explain(Y, Y)["path"], flush=True)


def half(torch, module):
    """Every contraction and structure of both types, operands that lie the other way, a copy, a batch, and a NaN that is summed again."""
    for N, dtype in itertools.product(HALF_SIZES, (torch.float16, torch.bfloat16)):
        X, Y = (torch.randn(N, N, device="cuda").to(dtype) for _ in range(2))
        assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
        assert all(finite(torch, module, X.mT, Y, *member) for member in FAMILY)
        assert all(finite(torch, module, X[:-3, :-3], Y[:-3, :-3], *member) for member in FAMILY)
        assert finite(torch, module, X.expand(3, N, N), Y.expand(3, N, N), 0, 1)
        X[N - 1, N - 1] = float("inf")
        assert not finite(torch, module, X, Y.mT, 0, 1)
    print("computed by", module.explain(Y, Y)["path"], flush=True)


def mma(torch, module):
    """Every contraction and structure of all four types, large tiles and small ones, a copy, a batch, and what is summed again."""
    module._PATH = module._MMA
    X, Y = (torch.randn(MMA_LARGE, MMA_LARGE, device="cuda").to(torch.float16) for _ in range(2))
    assert finite(torch, module, X, Y, 0, 1) and finite(torch, module, X.mT, Y.mT, 0, 1)
    for N, dtype in itertools.product(MMA_SIZES, (torch.float32, torch.float64, torch.float16, torch.bfloat16)):
        X, Y = (torch.randn(N, N, device="cuda").to(dtype) for _ in range(2))
        assert all(finite(torch, module, X, Y, *member) for member in FAMILY)
        assert all(finite(torch, module, X.mT, Y, *member) for member in FAMILY)
        assert finite(torch, module, X[:-3, :-3], Y[:-3, :-3], 0, 1)
        assert finite(torch, module, X.expand(3, N, N), Y.expand(3, N, N), 0, 1)
        X[N - 1, N - 1] = float("inf")
        assert not finite(torch, module, X, Y.mT, 0, 1)
    print("computed by", module.explain(Y, Y)["path"], flush=True)


KERNELS = {"portable": portable, "tf32": tf32, "hopper": hopper, "half": half, "mma": mma}


def copy_for(text, *tools):
    """The file's text with what EVERY_COPY has, and COPIED for the tools."""
    for old, new in (*EVERY_COPY, *(pair for tool in tools for pair in COPIED.get(tool, ()))):
        assert text.count(old) == 1, f"{FILE} no longer holds {old!r}, which tests/sanitize.py replaces"
        text = text.replace(old, new)
    return text


def load(tool):
    """The module model_new, from the copy for the tool."""
    module = types.ModuleType("sanitized")
    exec(compile(copy_for(FILE.read_text(), tool), str(FILE), "exec"), module.__dict__)
    return module


def main():
    if sys.argv[1:2] == ["--child"]:
        import torch

        module = load(sys.argv[2])
        for kernels in sys.argv[3:]:
            module._PATH = module._AUTOMATIC
            KERNELS[kernels](torch, module)
        return 0
    unknown = [argument for argument in sys.argv[1:] if argument not in TOOLS and argument not in KERNELS]
    if unknown or not shutil.which("compute-sanitizer"):
        accepted = ", ".join([*TOOLS, *KERNELS])
        print(f"unknown argument {unknown[0]!r}; accepted: {accepted}" if unknown else "compute-sanitizer is not on PATH", file=sys.stderr)
        return 2
    tools = [tool for tool in sys.argv[1:] if tool in TOOLS] or TOOLS
    kernels = [some for some in sys.argv[1:] if some in KERNELS] or list(KERNELS)
    # Its large tiles are compiled for Hopper on request alone
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TRIL_MATMUL_PATH": "mma" if "mma" in kernels else "auto"}
    dirty = 0
    for tool in tools:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
        for name in () if tool == "initcheck" else NAMED:
            command += ["--kernel-name", f"kns={name}"]
        run = subprocess.run(
            [*command, sys.executable, __file__, "--child", tool, *kernels], capture_output=True, text=True, env=environment
        )
        print(f"{tool}: {'clean' if run.returncode == 0 else 'NOT CLEAN'}")
        print("  " + "\n  ".join(line for line in run.stdout.splitlines() if "SUMMARY" in line or "computed by" in line))
        if run.returncode:
            dirty += 1
            print(run.stdout[-4000:], run.stderr[-2000:])
    return 1 if dirty else 0


if __name__ == "__main__":
    sys.exit(main())
