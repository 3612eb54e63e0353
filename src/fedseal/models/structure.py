"""Layers found by what they do when the model runs, never by index or name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ExecutedLayer:
    """A leaf module with parameters of its own, as it took part in one forward pass.

    Attributes:
        name: its dotted name in the model.
        module: the module.
        inputs: what entered it, [B, ...].
        outputs: what left it, [B, ...].
    """

    name: str
    module: nn.Module
    inputs: Tensor
    outputs: Tensor

    @property
    def weight_name(self) -> str:
        """Name of the weight among the model's parameters."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias_name(self) -> str | None:
        """Name of the bias among the model's parameters, if the layer has one."""
        if getattr(self.module, "bias", None) is None:
            return None
        return f"{self.name}.bias" if self.name else "bias"


def executed_layers(model: nn.Module, images: Tensor) -> list[ExecutedLayer]:
    """Run the model on `images` [B, C, H, W] and return its parameterised leaf modules in order of execution."""
    layers: list[ExecutedLayer] = []
    names = {module: name for name, module in model.named_modules()}

    def hook(module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:
        seen, made = _first_tensor(inputs), _first_tensor(outputs)
        if seen is not None and made is not None:
            layers.append(ExecutedLayer(names[module], module, seen.detach(), made.detach()))

    leaves = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    handles = [leaf.register_forward_hook(hook) for leaf in leaves]
    try:
        with torch.no_grad():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return layers


def _first_tensor(values: Any) -> Tensor | None:
    """Return the tensor a module took or gave; of several (attention, recurrence) the first."""
    while isinstance(values, tuple | list) and values:
        values = values[0]
    return values if isinstance(values, Tensor) else None


def output_layer(model: nn.Module, images: Tensor, num_classes: int) -> ExecutedLayer | None:
    """Return the linear layer that produces the logits, or None if the last layer is something else."""
    layers = executed_layers(model, images)
    if not layers:
        return None
    last = layers[-1]
    return last if isinstance(last.module, nn.Linear) and last.module.out_features == num_classes else None


def input_linear_layer(model: nn.Module, images: Tensor) -> ExecutedLayer | None:
    """Return the first layer if it is linear, has a bias and sees the flattened image itself; else None."""
    layers = executed_layers(model, images)
    if not layers:
        return None
    first = layers[0]
    if not isinstance(first.module, nn.Linear) or first.bias_name is None:
        return None
    seen = first.inputs
    return first if seen.shape == (len(images), images[0].numel()) and bool((seen == images.flatten(1)).all()) else None


def multiply_adds(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the multiply-adds of one forward pass on inputs of `shape`, in convolutions and linear layers."""
    count = 0

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal count
        weight = module.weight
        assert isinstance(weight, Tensor)
        count += output.numel() * weight[0].numel()

    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    like = next(model.parameters())
    with torch.no_grad():
        model(like.new_zeros(shape))
    for handle in handles:
        handle.remove()
    return count
