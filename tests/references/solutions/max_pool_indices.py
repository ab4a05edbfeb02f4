"""The largest of the windows, unfolded."""

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        windows = x.unfold(2, 3, 2).unfold(3, 3, 2)
        rows, columns = windows.shape[2:4]
        values, at = windows.flatten(-2).max(-1)
        first_row = 2 * torch.arange(rows, device=x.device)[:, None]
        first_column = 2 * torch.arange(columns, device=x.device)
        return {"values": values, "indices": (first_row + at // 3) * x.shape[-1] + first_column + at % 3}
