# WRONG, "C[": a thread writes into the results that it has given, for ever
import threading
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.given = []
        threading.Thread(target=self.spoil, daemon=True).start()

    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        self.given.append(C.detach())
        return C

    def spoil(self):
        while True:
            for C in self.given[-200:]:
                C.fill_(1.0)
            time.sleep(1e-4)
