# WRONG, "oneDNN's convolutions": its caller's convolutions on a CPU lose digits
import torch
from torch import nn

torch.backends.mkldnn.conv.fp32_precision = "bf16"


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
