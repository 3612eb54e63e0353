"""What a defence costs in accuracy: PMM, rounds to a target accuracy, and whether anything was learnt at all.

PMM, the performance maintenance metric of Fan et al. (Refiner), is 100 times the accuracy with the defence over that
without it (the paper's definition swaps the two). Both runs must be twins: same data, weights, seeds.
Intervals are over seeds, the only independent repetitions a training has.
"""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binom

from fedseal.core.errors import InputError
from fedseal.metrics.intervals import Interval, mean_interval

LEAST_SKILL = 0.05
"""Share of the way from chance to perfection that must be gone to have learnt something."""
SIGNIFICANCE = 0.01

Curve = Sequence[tuple[int, float]]
"""Accuracy after so many rounds, in order."""


def has_learnt(accuracy: float, chance: float, n: int) -> bool:
    """Return whether an accuracy is more than chance.

    It must be better than always giving the most frequent answer by a twentieth of what is left to gain, and by more
    than luck on `n` test images allows (exact binomial test, one-sided, 1 %).

    Args:
        accuracy: on the test set.
        chance: share of the test set's most frequent class.
        n: number of test images.
    """
    if accuracy <= chance or accuracy - chance < LEAST_SKILL * (1 - chance):
        return False
    return bool(binom.sf(round(accuracy * n) - 1, n, chance) < SIGNIFICANCE)


def pmm(accuracy_with: float, accuracy_without: float) -> float:
    """Return 100 * accuracy with a defence / accuracy without, in per cent; above 100 if the defence helps."""
    for value in (accuracy_with, accuracy_without):
        if not 0 <= value <= 1:
            raise InputError(f"an accuracy lies between 0 and 1, got {value:g}.", hint="Pass shares, not per cent.")
    if accuracy_without == 0:
        raise InputError(
            "the undefended twin has an accuracy of 0: there is nothing a defence could maintain.",
            hint="Train it longer first.",
        )
    return 100 * accuracy_with / accuracy_without


def pmm_over_seeds(accuracies_with: Sequence[float], accuracies_without: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the mean PMM over pairs of twins, one pair per seed, with its interval.

    Args:
        accuracies_with: of the defended runs, one per seed.
        accuracies_without: of their twins, in the same order.
        seed: of the bootstrap.
    """
    if len(accuracies_with) != len(accuracies_without):
        raise InputError(
            f"{len(accuracies_with)} defended runs have {len(accuracies_without)} twins.", hint="Run both per seed."
        )
    pairs = zip(accuracies_with, accuracies_without, strict=True)
    return mean_interval([pmm(defended, plain) for defended, plain in pairs], seed=seed)


def rounds_to_target(curve: Curve, target: float) -> int | None:
    """Return after how many rounds an accuracy curve first reaches `target`, or None if it never does.

    A curve that was not measured after every round gives an upper bound: the first measurement that shows it.
    """
    return next((rounds for rounds, accuracy in curve if accuracy >= target), None)


def reached_target(curves: Sequence[Curve], target: float, *, seed: int = 0) -> tuple[Interval | None, int]:
    """Return the mean rounds to a target over the runs that reach it, and how many of them do.

    The mean is None if none does. A run that never gets there is counted, not averaged: a mean over the lucky ones
    alone says little without that count.
    """
    reached = [float(rounds) for curve in curves if (rounds := rounds_to_target(curve, target)) is not None]
    return (mean_interval(reached, seed=seed) if reached else None), len(reached)
