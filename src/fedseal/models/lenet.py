"""The small convolutional networks of DLG: three 5x5 convolutions of 12 channels and one linear layer.

Zhu et al. 2019 use sigmoid activations so that the network is twice differentiable: `lenet`, also called
`lenet-sigmoid`, is theirs, and AdaDefense's. `lenet-relu` is the same network with the activation of today. Defences
fare differently on the two, so results name which.
"""

from __future__ import annotations

from torch import nn

from fedseal.core.registry import Info
from fedseal.models.layers import Activation, activation_module, with_head
from fedseal.models.registry import MODELS

_PAPER = "Zhu et al., NeurIPS 2019"


def _lenet(input_shape: tuple[int, int, int], num_classes: int, activation: Activation) -> nn.Module:
    layers = [
        nn.Conv2d(input_shape[0], 12, 5, stride=2, padding=2),
        activation_module(activation),
        nn.Conv2d(12, 12, 5, stride=2, padding=2),
        activation_module(activation),
        nn.Conv2d(12, 12, 5, stride=1, padding=2),
        activation_module(activation),
    ]
    return with_head(layers, input_shape, num_classes)


@MODELS.register("lenet", Info("three sigmoid convolutions and a linear layer, as in DLG", paper=_PAPER))
def lenet(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Build DLG's LeNet."""
    return _lenet(input_shape, num_classes, "sigmoid")


@MODELS.register("lenet-sigmoid", Info("`lenet` by its full name", paper=_PAPER))
def lenet_sigmoid(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Build DLG's LeNet."""
    return _lenet(input_shape, num_classes, "sigmoid")


@MODELS.register("lenet-relu", Info("the same network with ReLU", paper=_PAPER))
def lenet_relu(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Build LeNet with ReLU activations."""
    return _lenet(input_shape, num_classes, "relu")
