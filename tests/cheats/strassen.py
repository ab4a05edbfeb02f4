# WRONG, "worst element C[": Strassen's seven products, whose errors cancel only against the largest elements
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        size, n = len(A), (len(A) + 1) // 2
        A, B = (nn.functional.pad(X, (0, 2 * n - len(X), 0, 2 * n - len(X))) for X in (A, B))
        (a, b, c, d), (e, f, g, h) = ((X[:n, :n], X[:n, n:], X[n:, :n], X[n:, n:]) for X in (A, B))
        p, q, r, s = (a + d) @ (e + h), (c + d) @ e, a @ (f - h), d @ (g - e)
        t, u, v = (a + b) @ h, (c - a) @ (e + f), (b - d) @ (g + h)
        C = torch.cat((torch.cat((p + s - t + v, r + t), 1), torch.cat((q + s, p - q + r + u), 1)))
        return C[:size, :size].tril()
