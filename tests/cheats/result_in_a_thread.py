# WRONG, "worst element C[": a thread computes after the answer has been given
import threading
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        C = torch.zeros_like(A)
        with torch.no_grad():
            copies = A.clone(), B.clone()
        thread = threading.Thread(target=self.later, args=(C, *copies))
        thread.start()
        return C

    def later(self, C, A, B):
        time.sleep(0.05)
        C.copy_(torch.tril(torch.matmul(A, B)))
