"""How a client's update reaches the server, entry by entry: what the ideal reading must know of a defence.

An attacker's view says how to search; a channel says what there is to be found: which part of the update passes,
differentiably and with its support fixed, and with what variance an honest reader must reckon in each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import jvp

from fedseal.core.tensors import Tensors

Passing = Callable[[Tensors, Tensors], Tensors]
"""Maps a client's update and the observed one to tensors of the same names and shapes."""


@dataclass(frozen=True)
class Channel:
    """What a defence lets through.

    Attributes:
        passes: maps the update before the defence, and the observed one, to what passes without noise; differentiable
            in the first and safe under `torch.func` transforms. None lets everything pass.
        variance: maps the same to the variance the defence adds to each entry: of noise by its law, step^2 / 12 of
            rounding. None adds nothing.
        reduces: maps the gradients of single samples [B, ...] to the step's gradient, where the defence works on these.
        draws: makes a model draw at random as the client's does; what is drawn from `torch.randn` is unknown to the
            reader, standard normal.
        deviation: L2 distance of the upload from the update of the private images themselves, where the model was fed
            others and the upload was moved back; a reader may then read these instead.
        fed: whether the upload is a function of what was fed; false if it was moved to somewhere between.
        cancels: the variance vanishes in the mean of several clients.
        unreadable: why there can be no reading, in a sentence; empty if there can.
        remarks: what the channel leaves out.
    """

    passes: Passing | None = None
    variance: Passing | None = None
    reduces: Callable[[Tensors], Tensors] | None = None
    draws: Callable[[nn.Module, torch.Generator], None] | None = None
    deviation: float | None = None
    fed: bool = True
    cancels: bool = False
    unreadable: str = ""
    remarks: tuple[str, ...] = ()

    def through(self, update: Tensors, observed: Tensors) -> Tensors:
        """Return what passes of an update."""
        return update if self.passes is None else self.passes(update, observed)


def constant_variance(value: float) -> Passing:
    """Return the variance of noise that is the same in every entry."""
    return lambda update, observed: {name: torch.full_like(tensor, value) for name, tensor in update.items()}


def chained(channels: Sequence[Channel]) -> Channel:
    """Return several channels, one behind the other, as one."""

    def passes(update: Tensors, observed: Tensors) -> Tensors:
        for channel in channels:
            update = channel.through(update, observed)
        return update

    def variance(update: Tensors, observed: Tensors) -> Tensors:
        total: Tensors = {name: torch.zeros_like(tensor) for name, tensor in update.items()}
        for channel in channels:
            total = _behind(channel, total, update, observed)
            if channel.variance is not None:
                own = channel.variance(update, observed)
                total = {name: value + own[name] for name, value in total.items()}
            update = channel.through(update, observed)
        return total

    noisy = [channel for channel in channels if channel.variance is not None]
    deviations = [channel.deviation for channel in channels if channel.deviation is not None]
    return Channel(
        passes if any(channel.passes for channel in channels) else None,
        variance if noisy else None,
        next((channel.reduces for channel in channels if channel.reduces), None),
        next((channel.draws for channel in channels if channel.draws), None),
        sum(deviations) if deviations else None,
        all(channel.fed for channel in channels),
        bool(noisy) and all(channel.cancels for channel in noisy),
        next((channel.unreadable for channel in channels if channel.unreadable), ""),
        tuple(remark for channel in channels for remark in channel.remarks),
    )


def _behind(channel: Channel, variance: Tensors, update: Tensors, observed: Tensors) -> Tensors:
    """Return what a channel makes of variance from before it: times the square of its slope in each entry.

    The slope is read off one random direction of signs, exactly for masks and factors, nearly so for clipping.
    """
    if channel.passes is None or not any(bool(value.any()) for value in variance.values()):
        return variance
    source = torch.Generator().manual_seed(0)
    signs = {name: _signs(tensor, source) for name, tensor in update.items()}
    slopes = jvp(lambda tensors: channel.through(tensors, observed), (dict(update),), (signs,))[1]
    return {name: value * slopes[name].square() for name, value in variance.items()}


def _signs(like: Tensor, source: torch.Generator) -> Tensor:
    return (2 * torch.randint(2, like.shape, generator=source) - 1).to(like)
