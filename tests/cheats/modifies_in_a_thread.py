# WRONG, "modified": a thread changes the input once it has been used
import threading

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        threading.Thread(target=lambda X: X.fill_(0.5), args=(A.detach(),)).start()
        return C
