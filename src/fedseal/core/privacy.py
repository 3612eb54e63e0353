"""What a defence claims of itself as a differentially private mechanism, in the terms a bound is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

PrivacyUnit: TypeAlias = Literal["update", "sample"]
"""Whose presence is hidden: a client's whole update of the round, or one of its samples."""


@dataclass(frozen=True)
class PrivateRelease:
    """Equal noisy releases of one round; neighbouring inputs differ by one unit added or taken away.

    Attributes:
        unit: whose presence is hidden.
        family: law of the noise.
        multiplier: the noise's scale (Gaussian standard deviation, or Laplace's b) over the sensitivity to one unit, in
            the norm of the law: L2 for Gaussian noise, L1 for Laplace's.
        rate: probability of the unit to take part; below 1 only where it is drawn independently (Poisson sampling).
        steps: releases of that kind in the round.
    """

    unit: PrivacyUnit
    family: Literal["gaussian", "laplace"]
    multiplier: float
    rate: float = 1.0
    steps: int = 1
