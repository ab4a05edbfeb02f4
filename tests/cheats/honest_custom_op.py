# ok: an operator of torch.library's with a gradient
import torch
from torch import nn


@torch.library.custom_op("honest::product", mutates_args=())
def product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return torch.tril(torch.matmul(A, B))


@product.register_fake
def _(A, B):
    return torch.empty_like(A)


def backward(ctx, G):
    A, B = ctx.saved_tensors
    G = torch.tril(G)
    return torch.tril(torch.matmul(G, B.mT)), torch.tril(torch.matmul(A.mT, G))


product.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


class ModelNew(nn.Module):
    def forward(self, A, B):
        return product(A, B)
