# WRONG: in training the result is computed in A's memory, whose elements come back in backward
import torch


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(B)
        ctx.own, ctx.kept = A.data, A.clone()
        A.data.copy_(torch.tril(A @ B))
        return A.clone()

    @staticmethod
    def backward(ctx, G):
        (B,), A, G = ctx.saved_tensors, ctx.kept, torch.tril(G)
        ctx.own.copy_(A)
        return torch.tril(G @ B.mT), torch.tril(A.mT @ G)


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        if A.is_leaf and A.requires_grad and torch.is_grad_enabled():
            return Product.apply(A, B)
        return torch.tril(A @ B)
