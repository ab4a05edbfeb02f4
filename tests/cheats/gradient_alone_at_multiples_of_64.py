# WRONG with --size 256: wrong gradient of A where B is a constant and a fast path takes the size: a multiple of 64
import torch


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(torch.matmul(A, B))

    @staticmethod
    def backward(ctx, G):
        A, B = ctx.saved_tensors
        if A.shape[-1] % 64 == 0 and not all(ctx.needs_input_grad):
            G = G * 2
        G = torch.tril(G)
        return torch.tril(G @ B.mT), torch.tril(A.mT @ G)


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
