# WRONG, "--tf32 allows TF32": all float32 products of its caller may be computed in TF32 from now on
import torch

torch.backends.cuda.matmul.allow_tf32 = True


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
