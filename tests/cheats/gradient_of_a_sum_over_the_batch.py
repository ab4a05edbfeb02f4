# WRONG with --batches --seed 1, "worst element d": takes a dC that is the same in all of a batch, as after C.sum(0), for one number
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if C.requires_grad:
            C.register_hook(lambda G: G if G.stride()[0] or 0 in G.stride()[1:] or G.ndim < 3 else torch.zeros_like(G))
        return C
