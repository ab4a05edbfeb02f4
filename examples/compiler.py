"""Prints the pip packages that bring an nvcc for the installed torch, on a machine without a CUDA toolkit.

The next command installs the packages. If there are none, the script says why on standard error, and the command does nothing.

    python examples/compiler.py | xargs -r pip install
"""

import argparse
import sys

# All packages have the version of torch's CUDA. The requirements of nvcc alone would bring the newest nvvm. An older ptxas refuses its
# PTX.
PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")


def packages(cuda):
    """Returns the packages that pip is to install for `cuda`, which is torch.version.cuda. If there are none, a ValueError says
    why."""
    if cuda is None:
        raise ValueError("this torch is for CPUs, and nothing has to be compiled")
    if int(cuda.split(".")[0]) < 13:
        raise ValueError(
            f"pip has no nvcc of CUDA {cuda}; NVIDIA's toolkit {cuda} has one (https://developer.nvidia.com/cuda-toolkit-archive)"
        )
    return [f"{package}~={cuda}.0" for package in PACKAGES]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    import torch

    try:
        print(*packages(torch.version.cuda))
    except ValueError as reason:
        sys.exit(f"compiler.py: {reason}")
