# ok on cuda: half of the columns on a stream of its own, which is waited for
import torch
from torch import nn

STREAM = torch.cuda.Stream()


class ModelNew(nn.Module):
    def forward(self, A, B):
        half, here = B.shape[1] // 2, torch.cuda.current_stream()
        STREAM.wait_stream(here)
        with torch.cuda.stream(STREAM):
            left = A @ B[:, :half]
        right = A @ B[:, half:]
        here.wait_stream(STREAM)
        left.record_stream(here)
        return torch.cat([left, right], 1).tril()
