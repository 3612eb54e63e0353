"""What Refiner does where nothing is said: the options of each preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fedseal.core.errors import UsageError
from fedseal.defences.refiner.refinement import RATES, Rule

Preset: TypeAlias = Literal["calibrated", "paper", "fast"]

DEFAULT_SHARE = 0.5
"""Of the gradient's norm, the radius of the ball if none is given.

Measured on CIFAR-10, 3 batches each of 1, 8 and 32 images: the refined gradient is 0.1 % away from the true one on the
sigmoid LeNet, 7 to 17 % with DLG's wide weights, 27 to 40 % with ReLU. Half of the norm leaves the refinement alone on
all of them; the paper's radius of 0.1 is 6 % of the norm at batch 1 and half of it at 32 with ReLU, and less than 1 %
with wide weights.
"""


@dataclass(frozen=True)
class Options:
    """What options are that were not given: rule and rate, steps of a first and a later visit, memory, ball."""

    rule: Rule
    rate: float
    t: int
    warm: int
    warm_t: int
    tolerance: float
    epsilon: float | None
    epsilon_relative: float | None


PRESETS: dict[Preset, Options] = {
    "calibrated": Options("normalised", RATES["normalised"], 10, 0, 5, 0.0, None, DEFAULT_SHARE),
    "paper": Options("plain", RATES["plain"], 10, 0, 5, 0.0, 0.1, None),
    "fast": Options("normalised", 0.08, 4, 10_000, 2, 0.02, None, DEFAULT_SHARE),
}


def check_ranges(shares: Mapping[str, float], sizes: Mapping[str, float], rate: float) -> None:
    """Refuse shares outside of [0, 1], sizes below 0 and a rate that is not positive, by their names."""
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise UsageError(f"refiner: {name} is a share between 0 and 1, got {share:g}.")
    for name, value in sizes.items():
        if not value >= 0:
            raise UsageError(f"refiner: {name} must not be negative, got {value:g}.")
    if not rate > 0:
        raise UsageError(f"refiner: lr must be positive, got {rate:g}.")
