"""Residual networks (He et al. 2016), with the stem for small images or the one for photographs.

`resnet20`, `resnet32` and `resnet56` are the paper's own for CIFAR (Sec. 4.2): three stages of 16, 32 and 64 channels,
and shortcuts that pad with zeros. The others are its networks for ImageNet, with a 3x3 stem unless `stem=imagenet`.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

from fedseal.core.ranges import Width
from fedseal.core.registry import Info
from fedseal.models.layers import Activation, activation_module
from fedseal.models.registry import MODELS

_PAPER = "He et al., CVPR 2016"

Stem: TypeAlias = Literal["cifar", "imagenet"]
"""One 3x3 convolution; or one of 7x7 with stride 2 and a max-pooling, which divide the resolution by four."""
Shape: TypeAlias = tuple[int, int, int]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut, 1x1 where shapes change."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, activation: Activation, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = activation_module(activation)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act2 = activation_module(activation)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, width, H/stride, W/stride]."""
        out: Tensor = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        result: Tensor = self.act2(out + self.shortcut(x))
        return result


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions, the last one four times as wide, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, activation: Activation, shortcut: nn.Module) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = activation_module(activation)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act2 = activation_module(activation)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.act3 = activation_module(activation)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, 4 width, H/stride, W/stride]."""
        out: Tensor = self.act2(self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))))
        result: Tensor = self.act3(self.bn3(self.conv3(out)) + self.shortcut(x))
        return result


class Padding(nn.Module):
    """A shortcut without parameters: every so many-th pixel, and zeros for the channels that come in (option A)."""

    def __init__(self, more: int, stride: int) -> None:
        super().__init__()
        self.more, self.stride = more, stride

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, C + more, H/stride, W/stride]."""
        before = self.more // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.more - before))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Stages of blocks, each but the first halving the resolution and doubling the width.

    Args:
        channels: of the images.
        num_classes: outputs.
        blocks: per stage.
        width: of the first stage.
        activation: everywhere.
        stem: see `Stem`.
        block: kind of block.
        padded: shortcuts that change shape pad with zeros, and have no weights.
    """

    def __init__(
        self,
        channels: int,
        num_classes: int,
        blocks: tuple[int, ...],
        width: Width,
        activation: Activation,
        stem: Stem = "cifar",
        block: type[BasicBlock | Bottleneck] = BasicBlock,
        padded: bool = False,
    ) -> None:
        super().__init__()
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(channels, width, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = activation_module(activation)
        self.first_pool: nn.Module = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            own = width * 2**stage
            made: list[nn.Module] = []
            for index in range(count):
                stride, outputs = 2 if stage and not index else 1, own * block.expansion
                shortcut: nn.Module = nn.Identity()
                if stride != 1 or inputs != outputs:
                    shortcut = Padding(outputs - inputs, stride) if padded else _projection(inputs, outputs, stride)
                made.append(block(inputs, own, stride, activation, shortcut))
                inputs = outputs
            stages.append(nn.Sequential(*made))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to logits [B, num_classes]."""
        features = self.first_pool(self.act1(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(self.pool(self.stages(features)).flatten(1))
        return logits

    @staticmethod
    def own_name(name: str) -> str:
        """Return what a parameter is called here that torchvision and its followers call `name`."""
        name = re.sub(r"^layer(\d+)\.", lambda found: f"stages.{int(found[1]) - 1}.", name)
        return re.sub(r"^linear\.", "fc.", name.replace(".downsample.", ".shortcut."))


@MODELS.register("resnet10", Info("residual network, one block per stage", paper=_PAPER))
def resnet10(
    input_shape: Shape, num_classes: int, width: Width = 64, activation: Activation = "relu", stem: Stem = "cifar"
) -> nn.Module:
    """Build ResNet-10."""
    return ResNet(input_shape[0], num_classes, (1, 1, 1, 1), width, activation, stem)


@MODELS.register("resnet18", Info("residual network, two blocks per stage", paper=_PAPER))
def resnet18(
    input_shape: Shape, num_classes: int, width: Width = 64, activation: Activation = "relu", stem: Stem = "cifar"
) -> nn.Module:
    """Build ResNet-18."""
    return ResNet(input_shape[0], num_classes, (2, 2, 2, 2), width, activation, stem)


@MODELS.register("resnet34", Info("residual network, 3, 4, 6 and 3 blocks", paper=_PAPER))
def resnet34(
    input_shape: Shape, num_classes: int, width: Width = 64, activation: Activation = "relu", stem: Stem = "cifar"
) -> nn.Module:
    """Build ResNet-34."""
    return ResNet(input_shape[0], num_classes, (3, 4, 6, 3), width, activation, stem)


@MODELS.register("resnet50", Info("residual network, 3, 4, 6 and 3 bottlenecks", paper=_PAPER))
def resnet50(
    input_shape: Shape, num_classes: int, width: Width = 64, activation: Activation = "relu", stem: Stem = "cifar"
) -> nn.Module:
    """Build ResNet-50."""
    return ResNet(input_shape[0], num_classes, (3, 4, 6, 3), width, activation, stem, Bottleneck)


@MODELS.register("resnet20", Info("the paper's smallest residual network for CIFAR", paper=_PAPER))
def resnet20(input_shape: Shape, num_classes: int, width: Width = 16, activation: Activation = "relu") -> nn.Module:
    """Build ResNet-20."""
    return ResNet(input_shape[0], num_classes, (3, 3, 3), width, activation, padded=True)


@MODELS.register("resnet32", Info("five blocks in each of three stages, for CIFAR", paper=_PAPER))
def resnet32(input_shape: Shape, num_classes: int, width: Width = 16, activation: Activation = "relu") -> nn.Module:
    """Build ResNet-32."""
    return ResNet(input_shape[0], num_classes, (5, 5, 5), width, activation, padded=True)


@MODELS.register("resnet56", Info("nine blocks in each of three stages, for CIFAR", paper=_PAPER))
def resnet56(input_shape: Shape, num_classes: int, width: Width = 16, activation: Activation = "relu") -> nn.Module:
    """Build ResNet-56."""
    return ResNet(input_shape[0], num_classes, (9, 9, 9), width, activation, padded=True)
