"""Descent on UM - beta PM from a noise-blended start (Sec. 3.4, Eq. 2), entries kept within bounds.

Two rules for a step. `plain` is the paper's: x* - lr (grad UM - beta grad PM), lr = 1. How the two terms compare is
then a matter of the model's initial weights: on a LeNet with PyTorch's, grad UM is a millionth of grad PM and nothing
keeps the utility; on one with DLG's wide weights it is twenty times larger, and the steps overshoot. `normalised`
gives both slopes the same length per image, lr per pixel, shortens steps linearly to the end, and takes no step along
grad UM that is longer than Polyak's, which would bring UM to zero if it were linear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.defences.refiner.privacy import PrivacyJudge
from fedseal.defences.refiner.utility import Judged

Rule: TypeAlias = Literal["normalised", "plain"]

RATES: dict[Rule, float] = {"normalised": 0.045, "plain": 1.0}
"""The learning rate of each rule: the first meets App. K's MSE(x*, x) and D(x*) on LeNet."""


@dataclass(frozen=True)
class Descent:
    """How refined images are looked for.

    Attributes:
        steps: to be taken.
        whole: t, of which these are the last; a warm start goes on where earlier steps ended.
        beta: weight of the privacy metric.
        rule: of a step.
        rate: its learning rate.
        tolerance: stop when UM changes by a smaller share and PM by less than this in one step; 0 never stops.
        bounds: between which every entry stays.
        waits: [B], the first steps that each image does not take; None if all take every step. A remembered image
            among new ones takes the last, short steps only, or it would drift further at every visit.
    """

    steps: int
    whole: int
    beta: float
    rule: Rule
    rate: float
    tolerance: float = 0.0
    waits: Tensor | None = None
    bounds: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Refined:
    """What a descent arrived at.

    Attributes:
        images: x*, [B, C, H, W] in [0, 1], or what else was refined, [B, ...].
        steps: taken.
        utility: UM before the last step.
        gap: |g* - g| before the last step.
        utility_slope, privacy_slope: mean norms per image of grad UM and grad PM in the first step; see `Descent`.
    """

    images: Tensor
    steps: int
    utility: float
    gap: float
    utility_slope: float
    privacy_slope: float


def refine(
    start: Tensor, private: Tensor, utility: Callable[[Tensor], Judged], privacy: PrivacyJudge, descent: Descent
) -> Refined:
    """Descend from `start` and return x*.

    Args:
        start: images [B, C, H, W] in [0, 1].
        private: x, the same shape.
        utility: judges images by UM.
        privacy: judges images by PM.
        descent: how.
    """
    images = start
    values: list[tuple[float, float]] = []
    slopes = (0.0, 0.0)
    judged: Judged | None = None
    for step in range(descent.steps):
        judged = utility(images)
        private_value, private_slope = _privacy(images, private, privacy, descent.beta)
        if step == 0:
            slopes = (_mean_norm(judged.slope), _mean_norm(private_slope))
        values.append((float(judged.value), private_value))
        if _settled(values, descent.tolerance):
            break
        images = (images - _step(judged, private_slope, descent, step)).clamp(*descent.bounds)
    return Refined(
        images,
        len(values),
        0.0 if judged is None else float(judged.value),
        0.0 if judged is None else float(judged.gap),
        *slopes,
    )


def _privacy(images: Tensor, private: Tensor, privacy: PrivacyJudge, beta: float) -> tuple[float, Tensor]:
    if beta == 0:
        return 0.0, torch.zeros_like(images)
    x = images.detach().requires_grad_()
    value = privacy(x, private)
    (slope,) = torch.autograd.grad(value.sum(), x)
    return float(value.detach().mean()), slope


def _step(judged: Judged, privacy: Tensor, descent: Descent, step: int) -> Tensor:
    """Return what is taken off the images: nothing off those that wait."""
    moves = 1.0 if descent.waits is None else _spread((descent.waits <= step).to(privacy), privacy)
    if descent.rule == "plain":
        return moves * descent.rate * (judged.slope - descent.beta * privacy)
    left = max(descent.steps, descent.whole) + 1
    done = left - 1 - descent.steps + step
    length = moves * descent.rate * (1 - done / left) / max(1.0, descent.beta)
    along = length * _unit(judged.slope)
    expected = (judged.slope * along).sum() / len(along)
    share = (judged.value / expected.clamp(min=1e-30)).clamp(max=1)
    return share * along - length * descent.beta * _unit(privacy)


def _unit(slope: Tensor) -> Tensor:
    """Scale each image's slope to a root mean square of 1 over its pixels; zero stays zero."""
    size = _spread(slope.flatten(1).square().mean(1).sqrt(), slope)
    return slope / torch.where(size > 0, size, 1)


def _spread(each: Tensor, like: Tensor) -> Tensor:
    """Return a value per sample [B] in a shape that meets `like` [B, ...]."""
    return each.view(-1, *[1] * (like.ndim - 1))


def _mean_norm(slope: Tensor) -> float:
    return float(slope.flatten(1).norm(dim=1).mean())


def _settled(values: list[tuple[float, float]], tolerance: float) -> bool:
    if tolerance == 0 or len(values) < 2:
        return False
    (utility_before, privacy_before), (utility, privacy) = values[-2:]
    return abs(utility - utility_before) < tolerance * utility_before and abs(privacy - privacy_before) < tolerance
