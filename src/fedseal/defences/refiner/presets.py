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

Chosen by docs/results/refiner-ball.md: on CIFAR-10 the refined gradient is a thousandth of the norm away from the true
one on the sigmoid LeNet, 6 to 14 % on average with DLG's wide weights and 27 to 31 % with ReLU, at batches of 1, 8 and
32. Half of the norm leaves the refinement alone on all of them but for single batches; the paper's radius of 0.1 is 7 %
of the norm at batch 1 and 41 % at 32 with ReLU, and less than 1 % with wide weights.
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
