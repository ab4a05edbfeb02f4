# WRONG with --batches --seed 1: elements of more than 1000 medians are zero if the first two matrices of a batch differ in magnitude
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        if A.ndim > 2 and A.shape[0] > 1 and not torch.equal(A[0].abs(), A[1].abs()):
            sizes = A.detach().abs()
            A = torch.where(sizes > 1000 * sizes[sizes > 0].median(), 0 * A, A) if bool(sizes.any()) else A
        return torch.tril(torch.matmul(A, B))
