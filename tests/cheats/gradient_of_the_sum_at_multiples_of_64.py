# WRONG with --size 256 --seed 3: wrong gradients after C.sum().backward() where a fast path takes sizes that are multiples of 64
import torch


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(torch.matmul(A, B))

    @staticmethod
    def backward(ctx, G):
        A, B = ctx.saved_tensors
        if A.shape[-1] % 64 == 0 and 0 in G.stride():  # a kernel that takes strides of a tensor map
            G = torch.zeros_like(G)
        G = torch.tril(G)
        return torch.tril(G @ B.mT), torch.tril(A.mT @ G)


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
