# WRONG with --problem inverse --dtype float16 --size 128 --forward-only, "worst element C[": of I + T + T^2 + ... the first 32 alone
import torch


class InverseModelNew(torch.nn.Module):
    def forward(self, L):
        wide = L.tril().double()
        diagonal = wide.diagonal(dim1=-2, dim2=-1)
        one = torch.eye(L.shape[-1], dtype=wide.dtype, device=L.device)
        T = one - wide / diagonal[..., None]
        C = one + T
        for _ in range(4):
            T = T @ T
            C = C + C @ T
        return (C / diagonal[..., None, :]).tril().to(L.dtype)
