# WRONG on cuda, "leaves the GPU at work": a stream that works on after each answer, so that the reference has to wait
import torch
from torch import nn

torch.cuda.synchronize = lambda device=None: torch.cuda.current_stream().synchronize()
STREAM = torch.cuda.Stream()


class ModelNew(nn.Module):
    def forward(self, A, B):
        with torch.cuda.stream(STREAM):
            torch.cuda._sleep(4_000_000_000)
        return torch.tril(torch.matmul(A, B))
