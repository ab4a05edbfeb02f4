# ok on cuda: a CUDA graph for each size, fed with copies
import torch
from torch import nn


class ModelNew(nn.Module):
    graphs = {}

    def forward(self, A, B):
        if torch.is_grad_enabled():
            return torch.tril(torch.matmul(A, B))
        if A.shape not in self.graphs:
            inputs, graph = (torch.zeros_like(A), torch.zeros_like(B)), torch.cuda.CUDAGraph()
            torch.tril(torch.matmul(*inputs))
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                result = torch.tril(torch.matmul(*inputs))
            self.graphs[A.shape] = inputs, graph, result
        inputs, graph, result = self.graphs[A.shape]
        inputs[0].copy_(A), inputs[1].copy_(B)
        graph.replay()
        return result.clone()
