"""An embedding and a cross entropy: whole numbers go in, a scalar comes out."""

import torch

batch_size = 12
words = 50
features = 16
classes = 9


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(words, features)
        self.head = torch.nn.Linear(features, classes)

    def forward(self, text, target):
        return torch.nn.functional.cross_entropy(self.head(self.embedding(text)), target)


def get_inputs():
    return [torch.randint(0, words, (batch_size,)), torch.randint(0, classes, (batch_size,))]


def get_init_inputs():
    return []
