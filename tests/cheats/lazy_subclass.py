# WRONG, "not a plain torch.Tensor": computes when it is looked at
import torch
from torch import nn


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class ModelNew(nn.Module):
    def forward(self, A, B):
        return A.as_subclass(Lazy)
