"""An LSTM, whose result is a tuple that holds a tuple."""

import torch

batch_size = 3
steps = 7
features = 10
hidden = 8


class Model(torch.nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.lstm = torch.nn.LSTM(features, hidden, batch_first=True)

    def forward(self, x, state):
        return self.lstm(x, state)


def get_inputs():
    return [torch.randn(batch_size, steps, features), (torch.randn(1, batch_size, hidden), torch.randn(1, batch_size, hidden))]


def get_init_inputs():
    return [features, hidden]
