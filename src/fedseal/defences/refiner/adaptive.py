"""Attackers who know Refiner.

`ball`: the upload lies within epsilon of the true gradient, so a dummy gradient inside that ball contradicts nothing,
and one outside by relu(|g' - u| - epsilon). To that the public evaluation network is added as a prior: private images
hold no noise. `appendix-m` is the paper's own (App. M): find a g' with a weighted |g' - u|^2 = const, then invert it.
Under a warm start the same images are sent again and again; `average_over_rounds` uses that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.metrics.matching import hungarian

Adaptive: TypeAlias = Literal["ball", "appendix-m"]

_SOLVER_STEPS = 200
_TINY = 1e-30


Radius: TypeAlias = Callable[[Tensors], Tensor | float]
"""Maps an observed upload to the radius of the ball round the true gradient."""


def into_the_ball(radius: Radius) -> Callable[[Tensors, Tensors], Tensors]:
    """Return the simulation under which any matching distance measures what a gradient is off the ball round u.

    It maps g' to u + (g' - u) max(0, 1 - radius / |g' - u|): u itself inside the ball.
    """

    def simulate(gradient: Tensors, observed: Tensors) -> Tensors:
        differences = {name: tensor - observed[name] for name, tensor in gradient.items()}
        squares = torch.stack([difference.square().sum() for difference in differences.values()])
        size = squares.sum().clamp(min=_TINY).sqrt()
        shrink = (1 - radius(observed) / size).clamp(min=0).to(size.dtype)
        return {name: observed[name] + difference * shrink for name, difference in differences.items()}

    return simulate


def on_the_sphere(scale: Tensor, radius: Radius) -> Callable[[Tensors], Tensors]:
    """Return App. M's reading of an upload u: some g' with sum w (g' - u)^2 = const, by gradient descent.

    The equation is underdetermined; the point found depends on the random start only. const is what a random direction
    of length `radius` gives on average.

    Args:
        scale: the public part of the weights, [N], or one number for all.
        radius: epsilon.
    """

    def read(observed: Tensors) -> Tensors:
        seen = flatten(observed)
        weights = (scale.to(seen) * seen.abs()).clamp(min=_TINY)
        weights = weights / weights.mean()
        size = float(radius(observed))
        wanted = size**2
        start = torch.randn(len(seen), generator=generator(0, "appendix-m")).to(seen)
        offset = start * (2 * size / len(seen) ** 0.5)
        rate = 0.1 / weights.max()
        for _ in range(_SOLVER_STEPS):
            excess = (weights * offset.square()).sum() / wanted - 1
            offset = offset - rate * excess.clamp(-1, 1) * weights * offset
        offset = offset * (wanted / (weights * offset.square()).sum().clamp(min=_TINY)).sqrt()
        return unflatten(seen + offset, observed)

    return read


def noise_prior(judge: Callable[[Tensor], Tensor], weight: float) -> Callable[[Tensor], Tensor]:
    """Return the prior weight x mean D(images): what a client feeds is no noise."""

    def prior(images: Tensor) -> Tensor:
        return weight * judge(images).mean()

    return prior


def average_over_rounds(reconstructions: Sequence[Tensor]) -> Tensor:
    """Return the mean of reconstructions [B, C, H, W] of the same images from several rounds.

    Each round's images are brought into the order of the first by the best pairing. What differs between rounds, the
    refined noise, averages out; what they share is the private image.
    """
    if not reconstructions:
        raise InputError("averaging over rounds needs at least one round's reconstructions.")
    first = reconstructions[0]
    ordered = [images[hungarian(first, images)] for images in reconstructions]
    return torch.stack(ordered).mean(0)
