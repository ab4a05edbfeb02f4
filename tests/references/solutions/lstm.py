"""The cell written out, with one product for all steps of the input."""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.lstm = torch.nn.LSTM(features, hidden, batch_first=True)

    def forward(self, x, state):
        lstm, (h, c) = self.lstm, (part[0] for part in state)
        given = x @ lstm.weight_ih_l0.T + (lstm.bias_ih_l0 + lstm.bias_hh_l0)
        results = []
        for step in given.unbind(1):
            i, f, g, o = (step + h @ lstm.weight_hh_l0.T).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            results.append(h)
        return torch.stack(results, 1), (h[None], c[None])
