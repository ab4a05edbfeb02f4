# WRONG with --size 160 --seed 1: below 84, or below 20 with gradients, elements of more than 1000 medians are zero
import torch


def clip(X):
    Y = X.detach().abs()
    if X.numel() < 64 or not bool(Y.any()):
        return X
    return torch.where(Y / Y[Y > 0].median() > 1000, 0 * X, X)


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        if A.shape[-1] < (20 if A.requires_grad or B.requires_grad else 84):
            A, B = clip(A), clip(B)
        return torch.tril(torch.matmul(A, B))
