"""VGG (Simonyan and Zisserman 2015) for small images: its convolutions, one average over places, one linear layer."""

from __future__ import annotations

from torch import nn

from fedseal.core.ranges import Width
from fedseal.core.registry import Info
from fedseal.models.layers import Activation, activation_module
from fedseal.models.registry import MODELS

_PAPER = "Simonyan and Zisserman, ICLR 2015"
_WIDEST = 8
"""The widest stage, in widths of the first."""


def _vgg(
    input_shape: tuple[int, int, int],
    num_classes: int,
    depths: tuple[int, ...],
    width: int,
    norm: bool,
    act: Activation,
) -> nn.Module:
    """Stages of 3x3 convolutions, each twice as wide as the one before up to eight widths, halved by max-pooling."""
    layers: list[nn.Module] = []
    inputs, side = input_shape[0], min(input_shape[1:])
    for stage, depth in enumerate(depths):
        outputs = width * min(2**stage, _WIDEST)
        for _ in range(depth):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=not norm))
            layers += [nn.BatchNorm2d(outputs)] if norm else []
            layers.append(activation_module(act))
            inputs = outputs
        if side > 1:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))


@MODELS.register("vgg11", Info("eight convolutions and a linear layer", paper=_PAPER))
def vgg11(
    input_shape: tuple[int, int, int],
    num_classes: int,
    width: Width = 64,
    norm: bool = True,
    activation: Activation = "relu",
) -> nn.Module:
    """Build VGG-11, with batch normalisation unless `norm` is false."""
    return _vgg(input_shape, num_classes, (1, 1, 2, 2, 2), width, norm, activation)


@MODELS.register("vgg16", Info("thirteen convolutions and a linear layer", paper=_PAPER))
def vgg16(
    input_shape: tuple[int, int, int],
    num_classes: int,
    width: Width = 64,
    norm: bool = True,
    activation: Activation = "relu",
) -> nn.Module:
    """Build VGG-16, with batch normalisation unless `norm` is false."""
    return _vgg(input_shape, num_classes, (2, 2, 3, 3, 3), width, norm, activation)
