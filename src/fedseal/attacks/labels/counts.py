"""From estimates of counts to whole counts that add up."""

from __future__ import annotations

import torch
from torch import Tensor


def round_to_sum(values: Tensor, total: int) -> Tensor:
    """Return the non-negative integers [C] that sum to `total` and lie nearest to `values` [C] in least squares.

    The values are projected onto {v >= 0, sum v = total} (a common shift, then clipping), then rounded by largest
    remainders, which together solve the integer problem.
    """
    values = values.double()
    descending = values.sort(descending=True).values
    excess = (descending.cumsum(0) - total) / torch.arange(1, len(values) + 1, device=values.device)
    shift = excess[max(int((descending > excess).sum()) - 1, 0)]
    projected = (values - shift).clamp(min=0)
    floors = projected.floor()
    missing = total - int(floors.sum())
    if missing < 0:  # a floor taken of 2 - 1e-16 cannot exceed the total, but one of 2 + 1e-16 can
        floors[floors.argmax()] += missing
        missing = 0
    extra = torch.zeros_like(floors)
    extra[(projected - floors).topk(missing).indices] = 1
    return (floors + extra).long()


def misfit(values: Tensor, total: int) -> float:
    """Return how far estimated counts [C] are from possible ones: the root mean square distance to `round_to_sum`.

    Near 0 if the estimate is right, about 0.3 if the values are arbitrary, more if they are negative.
    """
    return float((values.double() - round_to_sum(values, total)).square().mean().sqrt())


def spread(signal: Tensor, total: int) -> Tensor:
    """Return counts [C] summing to `total`, in proportion to the negative part of `signal` [C], one at least each.

    For rules that name classes but cannot count: what a rule for distinct labels says when there are more images
    than classes.
    """
    weight = (-signal).clamp(min=0)
    if not bool(weight.any()):
        weight = torch.ones_like(weight)
    return 1 + round_to_sum((total - len(signal)) * weight / weight.sum(), total - len(signal))
