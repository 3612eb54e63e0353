"""What passes inside a model during a forward pass, for priors that look there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.GELU, nn.SiLU)


class Captured(NamedTuple):
    """Inner values of one forward pass; a tuple, so that `torch.func` carries it through its transforms.

    Attributes:
        bn: mean and variance of what entered each batch normalisation layer, by module name.
        activations: outputs of the activation modules, in order.
    """

    bn: dict[str, tuple[Tensor, Tensor]]
    activations: list[Tensor]


def nothing_captured() -> Captured:
    """Return an empty record."""
    return Captured({}, [])


class CaptureHooks:
    """Hooks on a model that fill `latest` anew in every forward pass.

    Args:
        model: the attacker's copy.
        statistics: whether to look at batch normalisation.
        activations: whether to keep activations.
    """

    def __init__(self, model: nn.Module, *, statistics: bool, activations: bool) -> None:
        self.latest = nothing_captured()
        model.register_forward_pre_hook(lambda module, inputs: self._reset())
        for name, module in model.named_modules():
            if statistics and isinstance(module, _BatchNorm):
                module.register_forward_pre_hook(self._bn_hook(name))
            elif activations and isinstance(module, _ACTIVATIONS):
                module.register_forward_hook(lambda module, inputs, output: self.latest.activations.append(output))

    def _reset(self) -> None:
        self.latest = nothing_captured()

    def _bn_hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0]
            dims = [0, *range(2, x.ndim)]
            self.latest.bn[name] = (x.mean(dims), x.var(dims, unbiased=False))

        return hook
