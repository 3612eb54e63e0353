"""Exact choice of entries by magnitude, in linear time and with ties in index order.

Ranks are those of a stable descending sort of magnitudes, which is never made: `topk` without sorting finds the values
at the two ends in O(n), comparisons do the rest. Of equal magnitudes the one with the lower index ranks first, so the
counts are exact whatever the values are, zeros and ties included.
"""

from __future__ import annotations

import torch
from torch import Tensor


def largest(magnitude: Tensor, count: int) -> Tensor:
    """Return True at the `count` largest entries of a flat tensor of magnitudes [n]."""
    if count <= 0:
        return torch.zeros_like(magnitude, dtype=torch.bool)
    if count >= magnitude.numel():
        return torch.ones_like(magnitude, dtype=torch.bool)
    return _above(magnitude, magnitude.topk(count, sorted=False).values.amin(), count)


def largest_and_middle(magnitude: Tensor, top: int, bottom: int) -> tuple[Tensor, Tensor]:
    """Return True at the `top` largest entries of [n], and at what is left without them and the `bottom` smallest.

    One selection over all entries serves both: the largest are sought among those that are not of the bottom.
    """
    upper = magnitude.numel() - bottom
    if top <= 0 or not 0 < upper < magnitude.numel():
        tops = largest(magnitude, top)
        return tops, largest(magnitude, upper) & ~tops
    values = magnitude.topk(upper, sorted=False).values
    uppers = _above(magnitude, values.amin(), upper)
    tops = uppers if top >= upper else _above(magnitude, values.topk(top, sorted=False).values.amin(), top)
    return tops, uppers & ~tops


def _above(magnitude: Tensor, threshold: Tensor, count: int) -> Tensor:
    """Return True at the `count` entries of [n] that reach a threshold; ties beyond the count are cut by index."""
    chosen = magnitude >= threshold
    surplus = int(torch.count_nonzero(chosen)) - count
    if surplus > 0:
        ties = torch.nonzero(magnitude == threshold).flatten()
        chosen[ties[len(ties) - surplus :]] = False
    return chosen
