# WRONG, "worst element d": a dC that does not begin at 16 bytes, as of the second part of torch.cat, is read from where these begin
import torch


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(A @ B)

    @staticmethod
    def backward(ctx, G):
        (A, B), over = ctx.saved_tensors, G.data_ptr() % 16 // G.itemsize
        if over:
            G = torch.as_strided(G, G.shape, G.stride(), G.storage_offset() - over)
        G = torch.tril(G)
        return torch.tril(G @ B.mT), torch.tril(A.mT @ G)


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return Product.apply(A, B)
