"""Residual network for tables (Gorishniy et al., NeurIPS 2021), small and without normalisation."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedseal.core.ranges import Layers, Width
from fedseal.core.registry import Info
from fedseal.models.registry import MODELS


class _Block(nn.Module):
    """x + W2 relu(W1 x)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.narrow(self.widen(x).relu()))


@MODELS.register("tab-resnet", Info("residual network for tables", paper="Gorishniy et al., NeurIPS 2021"))
def tab_resnet(
    input_shape: tuple[int, ...], num_classes: int, width: Width = 64, hidden: Width = 128, blocks: Layers = 2
) -> nn.Module:
    """Build a linear embedding of all entries, `blocks` residual blocks and a head.

    Batch normalisation, which the paper has in every block, is left out: federations do without, and what it hides is
    measured by models that have it.
    """
    layers = [_Block(width, hidden) for _ in range(blocks)]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), width), *layers, nn.ReLU(), nn.Linear(width, num_classes)
    )
