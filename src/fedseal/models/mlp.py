"""Fully connected classifier; FedLeak's Table 11 uses three layers."""

from __future__ import annotations

import math

from torch import nn

from fedseal.core.ranges import Hidden, Width
from fedseal.core.registry import Info
from fedseal.models.layers import Activation, activation_module
from fedseal.models.registry import MODELS


@MODELS.register("mlp", Info("fully connected network; its first layer gives the image away exactly"))
def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    width: Width = 256,
    depth: Hidden = 2,
    activation: Activation = "relu",
) -> nn.Module:
    """Build `depth` hidden layers of `width` units."""
    features = math.prod(input_shape)
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(depth):
        layers += [nn.Linear(features, width), activation_module(activation)]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, num_classes))
