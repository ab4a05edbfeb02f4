"""Causal attention: half of the scores are minus infinity."""

import math

import torch

batch_size = 2
heads = 3
steps = 20
features = 16


class Model(torch.nn.Module):
    def forward(self, Q, K, V):
        scores = Q @ K.mT / math.sqrt(Q.shape[-1])
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=Q.device).triu(1)
        return scores.masked_fill(mask, -math.inf).softmax(-1) @ V


def get_inputs():
    return [torch.randn(batch_size, heads, steps, features) for _ in range(3)]


def get_init_inputs():
    return []
