"""Residual networks with basic blocks (He et al. 2016) and the CIFAR stem: one 3x3 convolution, no first pooling."""

from __future__ import annotations

from torch import Tensor, nn

from fedseal.core.ranges import Width
from fedseal.core.registry import Info
from fedseal.models.layers import Activation, activation_module
from fedseal.models.registry import MODELS

_PAPER = "He et al., CVPR 2016"


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut, 1x1 where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.act1 = activation_module(activation)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act2 = activation_module(activation)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H/stride, W/stride]."""
        out: Tensor = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        result: Tensor = self.act2(out + self.shortcut(x))
        return result


class ResNet(nn.Module):
    """Stages of basic blocks, each but the first halving the resolution and doubling the width."""

    def __init__(
        self, channels: int, num_classes: int, blocks: tuple[int, ...], width: Width, activation: Activation
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = activation_module(activation)
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (count - 1)
            stages.append(
                nn.Sequential(
                    *(
                        BasicBlock(inputs if index == 0 else outputs, outputs, stride, activation)
                        for index, stride in enumerate(strides)
                    )
                )
            )
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to logits [B, num_classes]."""
        features = self.pool(self.stages(self.act1(self.bn1(self.conv1(x))))).flatten(1)
        logits: Tensor = self.fc(features)
        return logits


@MODELS.register("resnet10", Info("residual network, one block per stage", paper=_PAPER))
def resnet10(
    input_shape: tuple[int, int, int],
    num_classes: int,
    width: Width = 64,
    activation: Activation = "relu",
) -> nn.Module:
    """Build ResNet-10."""
    return ResNet(input_shape[0], num_classes, (1, 1, 1, 1), width, activation)


@MODELS.register("resnet18", Info("residual network, two blocks per stage", paper=_PAPER))
def resnet18(
    input_shape: tuple[int, int, int],
    num_classes: int,
    width: Width = 64,
    activation: Activation = "relu",
) -> nn.Module:
    """Build ResNet-18."""
    return ResNet(input_shape[0], num_classes, (2, 2, 2, 2), width, activation)
