# cannot run, "does not have the CUDA toolkit (nvcc)": torch says so of a CUDA extension where no toolkit is installed
import os

from torch.utils import cpp_extension

cpp_extension.CUDA_HOME = None
os.environ.pop("CUDA_HOME", None)
cpp_extension.load_inline("needs_a_toolkit", cpp_sources="", cuda_sources="__global__ void kernel() {}", functions=[])
