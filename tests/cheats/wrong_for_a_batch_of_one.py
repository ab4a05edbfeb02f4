# WRONG with --batches, "worst element C": wrong where a batch has a single product
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return 2 * C if A.ndim > 2 and len(A) == 1 else C
