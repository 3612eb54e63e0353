"""How far an update is from the true gradient: the cause of which a reconstruction's quality is the effect.

Xue et al. (Dual Gradient Pruning, AAAI 2024) plot reconstruction quality against the relative distance;
cosine similarity is what matching attacks in the manner of Geiping et al. (NeurIPS 2020) maximise.
"""

from __future__ import annotations

import math

import torch

from fedseal.core.errors import InputError
from fedseal.core.tensors import Tensors, check_finite, check_like
from fedseal.metrics.checks import precise


def relative_distance(gradient: Tensors, update: Tensors) -> float | None:
    """Return |g - u| / |g| over all coordinates of all tensors; None if g is zero, where it is undefined.

    Args:
        gradient: the true gradient g, by parameter name.
        update: what was sent, u, with the same names, shapes and dtypes.
    """
    _check(gradient, update)
    norm = _dot(gradient, gradient)
    difference = sum(float((precise(g) - precise(update[n])).square().sum()) for n, g in gradient.items())
    return math.sqrt(difference / norm) if norm > 0 else None


def cosine_similarity(gradient: Tensors, update: Tensors) -> float | None:
    """Return <g, u> / (|g| |u|) over all coordinates of all tensors; None if g or u is zero.

    One global cosine, not a mean over layers: scaling one layer of u changes it, scaling all of u does not.
    """
    _check(gradient, update)
    norms = math.sqrt(_dot(gradient, gradient)) * math.sqrt(_dot(update, update))
    return min(1.0, max(-1.0, _dot(gradient, update) / norms)) if norms > 0 else None


def density(update: Tensors) -> float:
    """Return the share of coordinates of an update that are not exactly zero, in [0, 1]."""
    check_finite(update, "density")
    total = sum(tensor.numel() for tensor in update.values())
    if total == 0:
        raise InputError("density: the update has no coordinates.", hint="Pass the tensors a client sent.")
    return sum(int(torch.count_nonzero(tensor)) for tensor in update.values()) / total


def _dot(a: Tensors, b: Tensors) -> float:
    return sum(float((precise(tensor) * precise(b[name])).sum()) for name, tensor in a.items())


def _check(gradient: Tensors, update: Tensors) -> None:
    check_like(update, gradient, "update")
    check_finite(gradient, "gradient")
    check_finite(update, "update")
