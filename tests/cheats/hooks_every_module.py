# WRONG, "hooks and modes": a hook of its own is called for each module of its caller
import torch

torch.nn.modules.module.register_module_forward_hook(lambda *_: None)


class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
