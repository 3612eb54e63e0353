"""What the models share: activations by name, initialisations by name, and finishing a freshly built network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import nn

from fedseal.models.checkpoint import load_checkpoint
from fedseal.models.outputs import TakeOutput

Activation: TypeAlias = Literal["relu", "sigmoid", "tanh", "elu"]
Init: TypeAlias = Literal["default", "wide-uniform"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
}


def activation_module(name: Activation) -> nn.Module:
    """Return a fresh activation module."""
    return _ACTIVATIONS[name]()


def finish(
    model: nn.Module, init: Init = "default", checkpoint: Path | None = None, output: str | None = None
) -> nn.Module:
    """Initialise a fresh network, load its checkpoint if there is one, and take that part of its answer.

    `wide-uniform` redraws every weight and bias from U(-0.5, 0.5), as DLG's experiments do; it is what makes a small
    sigmoid network leak best. `default` keeps PyTorch's own initialisation.
    """
    if init == "wide-uniform":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.uniform_(-0.5, 0.5)
    if checkpoint is not None:
        load_checkpoint(model, checkpoint)
    if output is not None:
        model.register_forward_hook(TakeOutput(output))
    return model


def with_head(
    layers: Sequence[nn.Module], input_shape: tuple[int, int, int], num_classes: int, *, bias: bool = True
) -> nn.Sequential:
    """Return layers, flattened, and a linear layer on all features they make of an image."""
    body = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*body, nn.Linear(flat_features(body, input_shape), num_classes, bias=bias))


def flat_features(body: nn.Module, input_shape: tuple[int, int, int]) -> int:
    """Return how many features `body` makes of one image."""
    was_training = body.training
    with torch.no_grad():
        features = int(body.eval()(torch.zeros(1, *input_shape)).numel())
    body.train(was_training)
    return features
