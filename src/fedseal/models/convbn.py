"""A small network of convolution blocks with batch normalisation whose last layer sees every position.

Two 4x4 convolutions of stride 2, two 3x3 ones, each with batch normalisation and an activation, and a linear layer on
the flattened result: 16x16 images become `width` x 4 x 4 features. It is the network of SEER's CPU preset.
"""

from __future__ import annotations

from torch import nn

from fedseal.core.ranges import Width
from fedseal.core.registry import Info
from fedseal.models.layers import Activation, activation_module, with_head
from fedseal.models.registry import MODELS

_PLAN = ((0.75, 4, 2), (1.0, 4, 2), (1.0, 3, 1), (1.0, 3, 1))
"""Channels as a share of the width, kernel size and stride of each convolution."""


@MODELS.register("convbn", Info("four convolution blocks with batch normalisation, without pooling"))
def convbn(
    input_shape: tuple[int, int, int],
    num_classes: int,
    width: Width = 32,
    activation: Activation = "relu",
) -> nn.Module:
    """Build the network with `width` channels in its last blocks."""
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for share, kernel, stride in _PLAN:
        outputs = max(1, round(share * width))
        layers += [nn.Conv2d(channels, outputs, kernel, stride, 1, bias=False), nn.BatchNorm2d(outputs)]
        layers.append(activation_module(activation))
        channels = outputs
    return with_head(layers, input_shape, num_classes)
