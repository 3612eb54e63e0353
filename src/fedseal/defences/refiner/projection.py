"""The epsilon projection (App. J): the upload stays within an L2 ball round the true gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.core.tensors import Tensors


@dataclass(frozen=True)
class Ball:
    """Where an upload may be: within a radius of the true gradient, in its units, or as a share of its norm.

    Attributes:
        absolute: the radius, or None.
        relative: the share, where the radius is None.
    """

    absolute: float | None
    relative: float | None = None

    @property
    def is_relative(self) -> bool:
        """Whether the radius is a share of the norm."""
        return self.absolute is None

    @property
    def size(self) -> float:
        """The radius, or the share."""
        chosen = self.absolute if self.relative is None else self.relative
        assert chosen is not None
        return chosen

    def radius(self, norm: float) -> float:
        """Return the radius round a true gradient of a norm."""
        return self.size * norm if self.is_relative else self.size


def norm(gradient: Tensors) -> Tensor:
    """Return the L2 norm of a gradient over all tensors together."""
    return torch.stack([tensor.double().square().sum() for tensor in gradient.values()]).sum().sqrt()


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
