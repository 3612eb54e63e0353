"""Distances between a dummy gradient and the observed one, over flat vectors [N]; each is 0 at the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from torch import Tensor

ObjectiveName: TypeAlias = Literal["cosine", "l2"]


def cosine(dummy: Tensor, observed: Tensor) -> Tensor:
    """Return 1 - cos(dummy, observed), one global cosine over all parameters (Inverting Gradients, Eq. 4)."""
    norms = (dummy.square().sum() * observed.square().sum()).clamp(min=1e-30).sqrt()
    return 1 - (dummy * observed).sum() / norms


def l2(dummy: Tensor, observed: Tensor) -> Tensor:
    """Return the sum of squared differences over all parameters (DLG, Eq. 4)."""
    return (dummy - observed).square().sum()


OBJECTIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cosine": cosine, "l2": l2}
