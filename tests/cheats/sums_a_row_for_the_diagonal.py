# WRONG with --problem inverse: takes the magnitude of a diagonal element to be the sum of its row, and reads its sign alone
import torch


class Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, L):
        wide = L.double().tril(-1)
        sums, diagonal = wide.abs().sum(-1), L.double().diagonal(dim1=-2, dim2=-1)
        wide = wide + torch.diag_embed(torch.where(sums > 1e-12, sums.copysign(diagonal), diagonal))
        C = torch.linalg.solve_triangular(wide, torch.eye(L.shape[-1], dtype=wide.dtype), upper=False)
        ctx.save_for_backward(C)
        return C.to(L.dtype)

    @staticmethod
    def backward(ctx, G):
        (C,) = ctx.saved_tensors
        return -(C.mT @ G.double() @ C.mT).tril().to(G.dtype)


class InverseModelNew(torch.nn.Module):
    def forward(self, L):
        return Inverse.apply(L)
