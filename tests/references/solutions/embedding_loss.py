"""The head is applied to all words, and the loss is written out."""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 9)

    def forward(self, text, target):
        scores = self.head(self.embedding.weight)[text]
        chosen = scores.gather(1, target[:, None]).squeeze(1)
        return (torch.logsumexp(scores, 1) - chosen).mean()
