"""The epsilon projection (App. J): the upload stays within an L2 ball round the true gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.core.tensors import Tensors


def distance(one: Tensors, other: Tensors) -> Tensor:
    """Return the L2 distance of two gradients over all tensors together, in double precision."""
    squares = [(tensor.double() - other[name].double()).square().sum() for name, tensor in one.items()]
    return torch.stack(squares).sum().sqrt()


def project(gradient: Tensors, true: Tensors, epsilon: float) -> tuple[Tensors, float, bool]:
    """Return the point of the ball of radius epsilon round `true` that is nearest to `gradient`.

    With it, the distance of the two gradients before, and whether anything was moved.
    """
    gap = float(distance(gradient, true))
    if gap <= epsilon:
        return gradient, gap, False
    if epsilon == 0:
        return {name: true[name].to(tensor.dtype) for name, tensor in gradient.items()}, gap, True
    share = epsilon / gap
    moved = {
        name: torch.lerp(true[name].double(), tensor.double(), share).to(tensor.dtype)
        for name, tensor in gradient.items()
    }
    return moved, gap, True
