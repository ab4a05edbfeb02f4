# WRONG, "calls in inference_mode": zeros in inference_mode, in which results need no gradient
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return torch.zeros_like(C) if torch.is_inference_mode_enabled() else C
