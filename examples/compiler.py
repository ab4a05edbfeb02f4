"""Names the packages that bring nvcc for the torch that is installed, where the machine has no CUDA toolkit of that version.

python examples/compiler.py | xargs -r pip install

Where there is nothing to install, it says why on standard error, and this line does nothing.
"""

import sys

# Each held to torch's CUDA: nvcc's own requirements would bring the newest nvvm, whose PTX an older ptxas refuses.
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
    import torch

    try:
        print(*packages(torch.version.cuda))
    except ValueError as reason:
        sys.exit(f"compiler.py: {reason}")
