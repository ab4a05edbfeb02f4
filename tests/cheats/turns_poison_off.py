# WRONG, "worst element C[": unwritten memory, after it has turned the poison off
import torch
from torch import nn

torch.utils.deterministic.fill_uninitialized_memory = False
torch.use_deterministic_algorithms(False)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.empty_like(A).tril()
