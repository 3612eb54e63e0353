"""A classifier read as a chain of linear maps, each followed by an activation; anything else is refused by name."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.errors import CapabilityError
from fedseal.models.chains.activations import IDENTITY, Inverse, inverse_of

_TRANSPARENT = (nn.Identity, nn.Flatten, nn.Dropout, nn.Unflatten)
_HINT = "A chain is convolutions, linear layers and activations in a row; use a matching attack such as `ig`."


@dataclass(frozen=True)
class Link:
    """A linear map with the activation behind it.

    Attributes:
        name: of the module.
        module: convolution or linear layer.
        weight, bias: its parameters, in the precision asked for; bias None if it has none.
        input_shape, output_shape: of one image, without the batch dimension.
        activation: behind it.
    """

    name: str
    module: nn.Conv2d | nn.Linear
    weight: Tensor
    bias: Tensor | None
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    activation: Inverse = IDENTITY

    def apply(self, x: Tensor) -> Tensor:
        """Return W x without bias and activation, x [K, *input_shape]."""
        if isinstance(self.module, nn.Linear):
            return x.flatten(1) @ self.weight.T
        return F.conv2d(x, self.weight, None, self.stride, self.padding)

    def apply_transposed(self, y: Tensor) -> Tensor:
        """Return W^T y, y [K, *output_shape]."""
        if isinstance(self.module, nn.Linear):
            return (y.flatten(1) @ self.weight).view(len(y), *self.input_shape)
        lost = tuple(
            (size + 2 * pad - kernel) % stride
            for size, pad, kernel, stride in zip(
                self.input_shape[1:], self.padding, self.weight.shape[2:], self.stride, strict=True
            )
        )
        return F.conv_transpose2d(y, self.weight, None, self.stride, self.padding, output_padding=lost)

    def biased(self, y: Tensor) -> Tensor:
        """Return y [..., *output_shape] plus the bias."""
        if self.bias is None:
            return y
        return y + self.bias.view(-1, *([1] * (len(self.output_shape) - 1)))

    @property
    def weight_name(self) -> str:
        """Name of the weight among the model's parameters."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias_name(self) -> str:
        """Name the bias has, or would have, among the model's parameters."""
        return f"{self.name}.bias" if self.name else "bias"

    @property
    def stride(self) -> tuple[int, int]:
        """The convolution's, per dimension."""
        assert isinstance(self.module, nn.Conv2d)
        rows, columns = self.module.stride
        return rows, columns

    @property
    def padding(self) -> tuple[int, int]:
        """The convolution's, per dimension."""
        assert isinstance(self.module, nn.Conv2d)
        assert not isinstance(self.module.padding, str)
        rows, columns = self.module.padding
        return rows, columns


def read_chain(model: nn.Module, input_shape: tuple[int, int, int], dtype: torch.dtype = torch.float64) -> list[Link]:
    """Return the stages of a model, from the image on; refuses what is no chain of known parts."""
    probe = torch.rand(1, *input_shape, generator=torch.Generator().manual_seed(0)).to(next(model.parameters()))
    calls, output = _recorded(model, probe)
    stages: list[Link] = []
    for name, module, inputs, outputs in calls:
        if isinstance(module, nn.Conv2d | nn.Linear):
            _check_linear(name, module, inputs)
            stages.append(_stage(name, module, inputs, outputs, dtype))
        elif (inverse := inverse_of(module)) is not None and stages:
            stages[-1] = replace(stages[-1], activation=inverse)
        elif not isinstance(module, _TRANSPARENT):
            raise CapabilityError(f"a chain cannot be read through `{name}`, a {type(module).__name__}.", hint=_HINT)
    if not stages or not isinstance(stages[-1].module, nn.Linear) or stages[-1].activation is not IDENTITY:
        raise CapabilityError("the model does not end in a linear layer that gives the logits.", hint=_HINT)
    fits = all(
        math.prod(before.output_shape) == math.prod(after.input_shape) for before, after in itertools.pairwise(stages)
    )
    if not fits or not torch.allclose(run_chain(stages, probe.to(dtype)).to(output), output, rtol=1e-3, atol=1e-4):
        raise CapabilityError(
            "the model does more than its modules in a row (skip connections, functional activations, pooling).",
            hint=_HINT,
        )
    return stages


def run_chain(stages: list[Link], images: Tensor) -> Tensor:
    """Return the logits [K, classes] of inputs [K, C, H, W]."""
    for stage in stages:
        images = stage.activation.forward(stage.biased(stage.apply(images.view(len(images), *stage.input_shape))))
    return images


def _recorded(model: nn.Module, probe: Tensor) -> tuple[list[tuple[str, nn.Module, Tensor, Tensor]], Tensor]:
    """Return the leaf modules in the order they ran, with what entered and left them, and the output."""
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []
    names = {module: name for name, module in model.named_modules()}

    def hook(module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:
        calls.append((names[module], module, inputs[0], outputs))

    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    handles = [leaf.register_forward_hook(hook) for leaf in leaves]
    try:
        with torch.no_grad():
            output: Tensor = model(probe)
    finally:
        for handle in handles:
            handle.remove()
    return calls, output


def _check_linear(name: str, module: nn.Conv2d | nn.Linear, inputs: Tensor) -> None:
    if isinstance(module, nn.Linear):
        if inputs.dim() != 2:
            raise CapabilityError(f"`{name}` is a linear layer on {inputs.dim() - 1} dimensions.", hint=_HINT)
        return
    plain = module.groups == 1 and set(module.dilation) == {1} and module.padding_mode == "zeros"
    if not plain or isinstance(module.padding, str):
        raise CapabilityError(f"`{name}` is a grouped, dilated or specially padded convolution.", hint=_HINT)


def _stage(name: str, module: nn.Conv2d | nn.Linear, inputs: Tensor, outputs: Tensor, dtype: torch.dtype) -> Link:
    bias = None if module.bias is None else module.bias.detach().to(dtype)
    weight = module.weight.detach().to(dtype)
    return Link(name, module, weight, bias, tuple(inputs.shape[1:]), tuple(outputs.shape[1:]))
