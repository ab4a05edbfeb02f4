# ok: makes a mask in its first call of a size and keeps it, whether gradients are recorded or not
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, A, B):
        N = A.shape[-1]
        if self.mask is None or self.mask.shape[-1] != N:
            self.mask = torch.ones(N, N, dtype=A.dtype, device=A.device).tril()
        return (A @ B) * self.mask
