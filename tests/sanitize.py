"""compute-sanitizer over every kernel: memcheck, racecheck, initcheck, synccheck. Needs a GPU and the CUDA toolkit; takes minutes.

    python tests/sanitize.py              all four tools
    python tests/sanitize.py memcheck     some of them

Not a test that pytest runs: the tools slow a kernel down a hundredfold. Exits 0 if every tool is clean, 1 if one is not, 2 if it
cannot run.
"""

import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SIZES = (1, 63, 257, 640)  # of the portable kernel: one element, less than a tile, no multiple of one, more than one team's share
HOPPER_SIZE = 1300  # float32 from 1280 on; tiles in pieces, an edge that no block divides


def products(torch, module):
    """Every contraction and structure, float32 and float64; then the Hopper kernel, lost elements and a refusal included."""

    def compute(X, Y, contraction, structure):
        C = torch.ops.tril_matmul.product(X, Y, contraction, structure)
        torch.cuda.synchronize()
        return C

    for N in SIZES:
        for dtype in (torch.float32, torch.float64):
            X, Y = (torch.randn(N, N, device="cuda", dtype=dtype) for _ in range(2))
            for contraction in (0, 1, 2):
                for structure in (0, 1, 2):
                    assert torch.isfinite(compute(X, Y, contraction, structure)).all()
    X, Y = (torch.randn(HOPPER_SIZE, HOPPER_SIZE, device="cuda") for _ in range(2))
    for contraction in (0, 1, 2):
        for structure in (0, 1, 2):
            assert torch.isfinite(compute(X, Y, contraction, structure)).all()
    X[5, 3] = float("inf")  # refused: the portable kernel computes behind it
    assert not torch.isfinite(compute(X, Y, 0, 1)).all()
    print("computed by", module.explain(Y, Y)["path"], flush=True)


def main():
    if sys.argv[1:] == ["--child"]:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        import torch

        import model_new

        products(torch, model_new)
        return 0
    tools = sys.argv[1:] or TOOLS
    unknown = [tool for tool in tools if tool not in TOOLS]
    if unknown or not shutil.which("compute-sanitizer"):
        print(
            f"unknown tool {unknown[0]!r}; accepted: {', '.join(TOOLS)}" if unknown else "compute-sanitizer is not on PATH", file=sys.stderr
        )
        return 2
    dirty = 0
    for tool in tools:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
        for kernel in ("portable", "hopper", "clear"):
            command += ["--kernel-regex", f"kns={kernel}"]
        run = subprocess.run([*command, sys.executable, __file__, "--child"], capture_output=True, text=True)
        print(f"{tool}: {'clean' if run.returncode == 0 else 'NOT CLEAN'}")
        print("  " + "\n  ".join(line for line in run.stdout.splitlines() if "SUMMARY" in line or "computed by" in line))
        if run.returncode:
            dirty += 1
            print(run.stdout[-4000:], run.stderr[-2000:])
    return 1 if dirty else 0


if __name__ == "__main__":
    sys.exit(main())
