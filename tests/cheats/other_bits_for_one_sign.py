# WRONG: other bits each time, where inputs are of one sign (KernelBench's are): the last bit is drawn
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        if not torch.is_grad_enabled() and (bool((A >= 0).all()) or bool((A <= 0).all())):
            C = C * (1 + (torch.rand_like(C) < 0.5) * torch.finfo(C.dtype).eps)
        return C
