# WRONG: keeps its last results by content, and gives out the very tensor that it keeps: who adds to C gets the sum the next time
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = []

    def forward(self, A, B):
        for X, Y, C in self.kept:
            if X.shape == A.shape and torch.equal(X, A) and torch.equal(Y, B):
                return C
        C = torch.tril(torch.matmul(A, B))
        if not torch.is_grad_enabled():
            self.kept = [*self.kept[-100:], (A.clone(), B.clone(), C)]
        return C
