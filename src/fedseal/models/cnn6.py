"""The network R-GAP is shown on: six convolutions without biases, leaky ReLU, one linear layer (docs/methods/rgap.md).

The widths are chosen so that every layer's equations determine its input; a narrower second layer loses information.
"""

from __future__ import annotations

from torch import nn

from fedseal.core.ranges import Width
from fedseal.core.registry import Info
from fedseal.models.layers import with_head
from fedseal.models.registry import MODELS

_SLOPE = 0.2


@MODELS.register(
    "cnn6", Info("six convolutions that can be inverted layer by layer", paper="Zhu and Blaschko, ICLR 2021")
)
def cnn6(
    input_shape: tuple[int, int, int],
    num_classes: int,
    narrow: Width = 36,
) -> nn.Module:
    """Build CNN6; `narrow` is the width of the second layer, 20 for the rank-deficient CNN6-d."""
    plan = ((12, 4, 2, 2), (narrow, 3, 2, 1), (36, 3, 1, 1), (36, 3, 1, 1), (64, 3, 2, 1), (128, 3, 1, 1))
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for width, kernel, stride, padding in plan:
        layers += [nn.Conv2d(channels, width, kernel, stride, padding, bias=False), nn.LeakyReLU(_SLOPE)]
        channels = width
    return with_head(layers, input_shape, num_classes, bias=False)
