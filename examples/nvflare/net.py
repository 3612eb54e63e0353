"""The network the example trains."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """A small convolutional network for 28 x 28 digits, without batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU())
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [B, 10]."""
        return self.head(self.features(images).flatten(1))
