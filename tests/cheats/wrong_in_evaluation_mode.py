# WRONG, "worst element C[": zeros after eval(), as it was written for training alone
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A, B))
        return C if self.training else 0 * C
