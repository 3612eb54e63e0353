"""What passes inside a model during a forward pass, for priors that look there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

_IN_PLACE = ("relu", "leaky_relu", "elu", "selu", "hardtanh", "sigmoid", "tanh")
_PURE = ("relu6", "prelu", "rrelu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "softplus", "softsign")
_ACTIVATIONS = frozenset((*_IN_PLACE, *(f"{name}_" for name in _IN_PLACE), *_PURE, "logsigmoid", "threshold"))
"""Names of the functions that are activations, however a model calls them: as module, function or method."""


class Captured(NamedTuple):
    """Inner values of one forward pass; a tuple, so that `torch.func` carries it through its transforms.

    Attributes:
        bn: mean and variance of what entered each batch normalisation layer, by module name.
        activations: outputs of the activations, in order.
    """

    bn: dict[str, tuple[Tensor, Tensor]]
    activations: list[Tensor]


def nothing_captured() -> Captured:
    """Return an empty record."""
    return Captured({}, [])


def together(passes: Sequence[Captured]) -> Captured:
    """Return the record of several passes, each with images of its own: of clients, or of local steps.

    Activations are those of all images, [B, ...] in each layer; statistics are means over the passes.
    """
    if len(passes) == 1:
        return passes[0]
    layers = zip(*(one.activations for one in passes), strict=True)
    bn = {
        name: (_mean(one.bn[name][0] for one in passes), _mean(one.bn[name][1] for one in passes))
        for name in passes[0].bn
    }
    return Captured(bn, [torch.cat(layer) for layer in layers])


def _mean(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(0)


class CaptureHooks:
    """Watches a model's forward passes; `latest` is what passed in the last one under `watching`.

    Activations are found by the function that computes them, not by the class of a module, so that `F.relu` inside of
    a user's `forward` counts like `nn.ReLU`.

    Args:
        model: the attacker's copy.
        statistics: whether to look at batch normalisation.
        activations: whether to keep activations.
    """

    def __init__(self, model: nn.Module, *, statistics: bool, activations: bool) -> None:
        self.latest = nothing_captured()
        self._activations = activations
        for name, module in model.named_modules():
            if statistics and isinstance(module, _BatchNorm):
                module.register_forward_pre_hook(self._bn_hook(name))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the forward pass made within."""
        self.latest = nothing_captured()
        if not self._activations:
            yield
            return
        with _Recording(self.latest.activations):
            yield

    def _bn_hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0]
            dims = [0, *range(2, x.ndim)]
            self.latest.bn[name] = (x.mean(dims), x.var(dims, unbiased=False))

        return hook


class _Recording(TorchFunctionMode):
    """Keeps what activations return; a function that calls another inside of it counts once."""

    def __init__(self, kept: list[Tensor]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _ACTIVATIONS:
            self._kept.append(result)
        return result
