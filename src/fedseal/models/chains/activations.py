"""Activations read from their output h: the input z before it, and the slope and curvature there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_OPEN = 1e-12
_BLOCK = 64
"""A multiple of the entries that vectorised loops of any processor take at once."""


@dataclass(frozen=True)
class Inverse:
    """An activation seen from its output.

    Attributes:
        forward: z -> h.
        inverse: h -> z, meaningful where `known`.
        slope: h -> dh/dz.
        curvature: h, slope -> d^2h/dz^2; None where it is zero everywhere.
        known: h -> where z follows from h, as a mask.
    """

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor, Tensor], Tensor] | None = None
    known: Callable[[Tensor], Tensor] = lambda h: torch.ones_like(h, dtype=torch.bool)


def _unchanged(value: Tensor) -> Tensor:
    return value


def _evenly(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return an elementwise function whose results do not depend on an entry's place in its tensor.

    Vectorised loops leave the last few entries to scalar code, which rounds sigmoids and exponentials differently; so
    tensors are filled up to whole blocks first.
    """

    def apply(z: Tensor) -> Tensor:
        missing = -z.numel() % _BLOCK
        if not missing:
            return function(z.contiguous())
        return function(F.pad(z.reshape(-1), (0, missing)))[: z.numel()].view(z.shape)

    return apply


IDENTITY = Inverse(_unchanged, _unchanged, torch.ones_like)


def inverse_of(module: nn.Module) -> Inverse | None:
    """Return how to read an activation module backwards; None if it is none, or loses too much."""
    if isinstance(module, nn.Sigmoid):
        return Inverse(
            _evenly(torch.sigmoid),
            lambda h: torch.logit(h.clamp(_OPEN, 1 - _OPEN)),
            lambda h: h * (1 - h),
            lambda h, slope: torch.addcmul(slope, slope, h, value=-2),
        )
    if isinstance(module, nn.Tanh):
        return Inverse(
            _evenly(torch.tanh),
            lambda h: torch.atanh(h.clamp(-1 + _OPEN, 1 - _OPEN)),
            lambda h: 1 - h.square(),
            lambda h, slope: -2 * h * slope,
        )
    if isinstance(module, nn.LeakyReLU):
        return _leaky(module.negative_slope)
    if isinstance(module, nn.ELU):
        return _elu(module.alpha)
    if isinstance(module, nn.ReLU):
        return Inverse(torch.relu, _unchanged, lambda h: (h > 0).to(h.dtype), known=lambda h: h > 0)
    return None


def _leaky(negative: float) -> Inverse:
    if negative <= 0:
        return Inverse(
            lambda z: F.leaky_relu(z, negative), _unchanged, lambda h: (h > 0).to(h.dtype), known=lambda h: h > 0
        )
    return Inverse(
        lambda z: F.leaky_relu(z, negative),
        lambda h: torch.where(h > 0, h, h / negative),
        lambda h: torch.where(h > 0, torch.ones_like(h), torch.full_like(h, negative)),
    )


def _elu(alpha: float) -> Inverse:
    return Inverse(
        _evenly(lambda z: F.elu(z, alpha)),
        lambda h: torch.where(h > 0, h, torch.log1p((h / alpha).clamp(min=-1 + _OPEN))),
        lambda h: torch.where(h > 0, torch.ones_like(h), (h + alpha).clamp(min=_OPEN)),
        lambda h, slope: torch.where(h > 0, torch.zeros_like(h), slope),
    )
