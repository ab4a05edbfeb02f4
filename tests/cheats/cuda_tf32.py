# WRONG on cuda, "worst element C[": the reference's own formula, with TF32 allowed in each call
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, A, B):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        product = torch.tril(torch.matmul(A, B))
        torch.set_float32_matmul_precision(before)  # a setting that stays changed is another finding, see allows_tf32.py
        return product
