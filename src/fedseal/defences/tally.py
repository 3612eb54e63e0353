"""What was done to the gradients of one round's steps, entry by entry: for defences that choose anew in every step."""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.core.channel import Channel
from fedseal.core.defence import RoundContext
from fedseal.core.tensors import Tensors


class StepTally:
    """Adds up over a round the variance of noise in each entry, and which entries were sent at all."""

    def __init__(self) -> None:
        self._variance: dict[str, Tensor] = {}
        self._sent: dict[str, Tensor] = {}

    def begin(self, context: RoundContext) -> None:
        """Forget the last round when a new one begins."""
        if context.step == 0:
            self._variance, self._sent = {}, {}

    def note(self, variance: Tensors, sent: Tensors, context: RoundContext) -> None:
        """Take a step: the variance of noise in each entry of its gradient, and True where an entry was kept."""
        weight = context.learning_rate**2 if context.kind == "delta" else 1.0
        for name, value in variance.items():
            before, kept = self._variance.get(name), self._sent.get(name)
            self._variance[name] = value * weight if before is None else before + value * weight
            self._sent[name] = sent[name] if kept is None else kept | sent[name]

    def channel(self) -> Channel:
        """Return what the round let through."""
        variance, sent = dict(self._variance), dict(self._sent)
        if not variance:
            return Channel()
        return Channel(
            lambda update, observed: {name: tensor * sent[name] for name, tensor in update.items()},
            lambda update, observed: {name: variance[name].to(tensor) for name, tensor in update.items()},
        )


def everything(tensors: Tensors) -> dict[str, Tensor]:
    """Return True at every entry."""
    return {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in tensors.items()}
