# WRONG, "answers the judge with something of its own": json.dumps says that all is well
import json

import torch
from torch import nn

json.dumps = lambda *_, **__: "true"


class ModelNew(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
