# ok: torch.jit.script reads the text of the function, as Triton's decorator does
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", category=DeprecationWarning)


@torch.jit.script
def product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return torch.tril(torch.matmul(A, B))


class ModelNew(nn.Module):
    def forward(self, A, B):
        return product(A, B)
