"""Prints the pip packages that bring an nvcc for the installed torch. They serve a machine without a CUDA toolkit.

The command below installs the packages. If there are no such packages, the script says why on standard error, and nothing is installed.

    python examples/compiler.py | xargs -r pip install
"""

import argparse
import ast
import sys
from pathlib import Path

SOLUTION = Path(__file__).parents[1] / "model_new.py"


def read_names():
    """Reads the names of the packages from model_new.py. That file is not imported, because its import would try to build the kernels."""
    statements = ast.parse(SOLUTION.read_text(encoding="utf-8")).body
    (names,) = (node.value for node in statements if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "_PIP_PACKAGES")
    return ast.literal_eval(names)


def packages(cuda):
    """Returns the packages that pip is to install for `cuda`, the value of torch.version.cuda. Raises ValueError with the reason if there
    are none."""
    if cuda is None:
        raise ValueError("this torch is for CPUs, and nothing has to be compiled")
    if int(cuda.split(".")[0]) < 13:
        raise ValueError(
            f"pip has no nvcc of CUDA {cuda}; NVIDIA's toolkit {cuda} has one (https://developer.nvidia.com/cuda-toolkit-archive)"
        )
    return [f"{package}~={cuda}.0" for package in read_names()]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    import torch

    try:
        print(*packages(torch.version.cuda))
    except ValueError as reason:
        sys.exit(f"compiler.py: {reason}")
