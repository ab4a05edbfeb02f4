# WRONG with --problem inverse --size 64 --dtype float32: in batches of other sizes than 64 all but the first are left out
import torch


class InverseModelNew(torch.nn.Module):
    def forward(self, L):
        L = L.tril()
        one = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
        C = torch.linalg.solve_triangular(L, one.expand_as(L), upper=False)
        if L.ndim > 2 and L.shape[-1] % 32:
            C = C[:1].expand_as(C).contiguous()
        return C
