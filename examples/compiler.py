"""Prints the pip packages that bring an nvcc for the installed torch, if the machine has no CUDA toolkit of its version.

python examples/compiler.py | xargs -r pip install

If there is nothing to install, the script says why on standard error, and this command does nothing.
"""

import argparse
import sys

# All get the version of torch's CUDA. The requirements of nvcc alone would bring the newest nvvm, whose PTX an older ptxas refuses.
PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")


def packages(cuda):
    """What pip is to install for torch.version.cuda. ValueError says why it has nothing."""
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
