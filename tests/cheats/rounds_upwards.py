# WRONG, "rounding and denormal numbers": a call leaves the processor rounding upwards for its caller
import ctypes

import torch

libm = ctypes.CDLL("libm.so.6")


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        libm.fesetround(0)
        C = torch.tril(torch.matmul(A, B))
        libm.fesetround({"x86_64": 0x800, "aarch64": 0x400000}[__import__("os").uname().machine])
        return C
