# ok: settings that a call changes are as before when it returns; what only tunes speed, warnings and paths may stay changed
import gc
import os
import random
import sys
import warnings

import torch

warnings.filterwarnings("ignore", category=FutureWarning)
torch.backends.cudnn.benchmark = True
os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
torch.rand(3)
random.random()


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, A, B):
        precision = torch.get_float32_matmul_precision()
        dtype = torch.get_default_dtype()
        enabled = gc.isenabled()
        gc.disable()
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float64)
        with torch.random.fork_rng(), torch.autocast(A.device.type, enabled=False):
            torch.manual_seed(1)
            torch.rand(3)
            C = torch.tril(torch.matmul(A, B))
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        if enabled:
            gc.enable()
        random.random()
        torch.rand(2)
        return C
