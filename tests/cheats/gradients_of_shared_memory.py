# WRONG, "dB is a": where both operands lie in the same memory, one gets no gradient of its own
import torch


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        if A is not B and A.data_ptr() == B.data_ptr() and A.requires_grad and B.requires_grad:
            return torch.tril(A @ A)
        return torch.tril(A @ B)
