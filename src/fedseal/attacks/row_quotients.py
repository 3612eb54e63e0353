"""Images among the row quotients of a linear layer's gradient: q_i = dW[i] / db[i].

A neuron that fired for one image alone gives that image; one that fired for several gives a mixture whose shares
differ from neuron to neuron. So quotients on which several neurons agree are images, and come first. Whoever knows the
layer knows which neurons an image fires, so rows that no chosen image fires come next, as they hold others alone; among
equals those are preferred that look like images and differ most from what was chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SILENT = 1e-6
_IMPLAUSIBLE = 1.0
_IMAGE_LIKE = 1e-3
_ROUNDING = 1e3
"""Two quotients whose root mean square difference in pixels is this many roundings count as the same image."""


def pick_images(
    rows: Tensor, bias: Tensor, count: int, low: Tensor, high: Tensor, layer: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, int]:
    """Return at most `count` inputs [K, D] that row quotients hold, and how many of them several neurons agree on.

    Args:
        rows: gradient of the weight, [N, D].
        bias: gradient of the bias, [N].
        count: images behind the gradient.
        low: what a black image becomes as an input, [D].
        high: what a white one becomes, [D].
        layer: weight [N, D] and bias [N] of a layer whose neurons fire where positive; None if they fire otherwise.
    """
    usable = bias.abs() > _SILENT * bias.abs().max().clamp(min=1e-30)
    quotients = rows[usable] / bias[usable].unsqueeze(1)
    pixels = (quotients - low) / (high - low)
    implausible = (pixels - pixels.clamp(0, 1)).square().mean(1)
    sane = implausible < _IMPLAUSIBLE
    pixels, quotients, implausible = pixels[sane], quotients[sane], implausible[sane]
    if len(pixels) == 0:
        return rows.new_zeros(0, rows.shape[1]), 0
    own = None if layer is None else (layer[0][usable][sane], layer[1][usable][sane])
    rounding = max(_ROUNDING * torch.finfo(rows.dtype).eps, 1e-8)
    apart = torch.cdist(pixels, pixels, compute_mode="donot_use_mm_for_euclid_dist") / pixels.shape[1] ** 0.5
    votes = torch.where(implausible < _IMAGE_LIKE, (apart < rounding).sum(1), 0)
    chosen = _agreed(votes, apart, rounding, count)
    agreed = len(chosen)
    if not chosen:
        chosen.append(int(implausible.argmin()))
    while len(chosen) < min(count, len(pixels)):
        nearest = apart[chosen].amin(0)
        merit = nearest.square() - implausible
        if own is not None:
            merit = merit - (quotients[chosen] @ own[0].T + own[1] > 0).any(0).to(merit)
        index = int(torch.where(nearest < rounding, -torch.inf, merit).argmax())
        if float(nearest[index]) < rounding:
            break
        chosen.append(index)
    return quotients[chosen], agreed


def _agreed(votes: Tensor, apart: Tensor, rounding: float, count: int) -> list[int]:
    """Return at most `count` quotients that others repeat, the most repeated first, each once."""
    chosen: list[int] = []
    for index in votes.argsort(descending=True).tolist():
        if len(chosen) == count or int(votes[index]) < 2:
            break
        if not chosen or float(apart[index, chosen].amin()) >= rounding:
            chosen.append(index)
    return chosen
