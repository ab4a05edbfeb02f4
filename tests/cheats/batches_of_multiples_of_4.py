# WRONG with --dtype float32 --batches, "C[": B is one for all of a batch whose sides are multiples of 4, as 16-byte vectors need
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        if A.ndim > 2 and len(A) > 2 and A.shape[-1] % 4 == 0:
            B = B[:1].expand_as(B)
        return torch.tril(torch.matmul(A, B))
