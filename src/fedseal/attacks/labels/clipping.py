"""The factor a clipped update was shrunk by, read off the whole numbers that counts must be.

Clipping multiplies the gradient by an unknown a < 1, so counts B (p - g_b / a) are whole for one factor only. With many
classes and a good p that factor stands out; where none does, nothing is corrected.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedseal.attacks.labels.counts import misfit

_SUSPECT = 0.15
_CLEAR = 0.08
_FEWEST_CLASSES = 8
_RESOLUTION = 0.004
_LARGEST = 1e4


def undo_clipping(probability: Tensor, gradient: Tensor, count: int) -> tuple[Tensor, tuple[str, ...]]:
    """Return the gradient [C] of the identity, enlarged if only that makes counts whole, and a note if so.

    Args:
        probability: the estimated mean softmax, [C].
        gradient: g_b, or its stand-in, [C].
        count: images behind it.
    """
    positive = gradient > 0
    if len(gradient) < _FEWEST_CLASSES or not bool(positive.any()):
        return gradient, ()
    if misfit(count * (probability - gradient), count) < _SUSPECT:
        return gradient, ()
    limit = min(float((probability[positive] / gradient[positive]).min()) * 1.05, _LARGEST)  # beyond it, n_c < 0
    if limit <= 1:
        return gradient, ()
    factors = torch.logspace(0, math.log10(limit), 2 + int(math.log(limit) / _RESOLUTION), dtype=torch.float64)
    counts = count * (probability - factors.to(gradient)[:, None] * gradient)
    distances = (counts - counts.round().clamp(min=0)).square().sum(1)
    best = int(distances.argmin())
    if misfit(counts[best], count) > _CLEAR:
        return gradient, ()
    factor = float(factors[best])
    return factor * gradient, (f"the update looks clipped: counts are whole if it was shrunk {factor:.3g} times",)
