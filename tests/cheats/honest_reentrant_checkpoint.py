# ok: it keeps nothing for backward, by torch's older checkpoints, which refuse backward(inputs=...)
import torch
from torch.utils.checkpoint import checkpoint


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return checkpoint(lambda A, B: torch.tril(A @ B), A, B, use_reentrant=True)
