"""Masks of dropout as unknowns, relaxed to numbers between 0 and 1 (GRAB, Feng et al., CCS 2024).

A client that trains with dropout drew masks which the server does not see; a gradient computed without them never
matches. Each entry of a mask is a sigmoid of a free number that starts where the sigmoid is the share kept, so that
the search begins with the model as it is without dropout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Drop:
    """One call of a layer of dropout.

    Attributes:
        module: the layer.
        shape: of what it is fed.
        keep: the share it keeps.
    """

    module: nn.Dropout
    shape: torch.Size
    keep: float

    def start(self, lanes: int) -> Tensor:
        """Return free numbers [lanes, *shape] whose sigmoid is the share kept."""
        return torch.full((lanes, *self.shape), math.log(self.keep / (1 - self.keep)))


def drops_of(model: nn.Module, ids: Tensor, names: Sequence[str]) -> tuple[Drop, ...]:
    """Return the calls of the named layers of dropout, in their order, when the model is fed ids [B, T]."""
    layers = dict(model.named_modules())
    wanted = [layers[name] for name in names]
    found: list[Drop] = []

    def note(module: nn.Module, inputs: tuple[Any, ...], answer: Tensor) -> None:
        assert isinstance(module, nn.Dropout)
        found.append(Drop(module, answer.shape, 1 - module.p))

    handles = [module.register_forward_hook(note) for module in wanted]
    try:
        with torch.no_grad():
            model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(found)


@contextmanager
def with_masks(drops: Sequence[Drop], free: Sequence[Tensor]) -> Iterator[None]:
    """Let the calls of dropout multiply by sigmoids of free numbers, in the order they come."""
    left = iter(zip(drops, free, strict=True))

    def drop(module: nn.Module, inputs: tuple[Any, ...], answer: Tensor) -> Tensor:
        call, mask = next(left)
        kept: Tensor = inputs[0] * mask.sigmoid() / call.keep
        return kept

    handles = [module.register_forward_hook(drop) for module in {call.module: None for call in drops}]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
