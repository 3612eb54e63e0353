"""Lower bounds on epsilon from what a mechanism's outputs gave away.

Two experiments, both valid for any mechanism, at a stated confidence. `one_run`: many canaries, each in or out of one
and the same run by a fair coin, guessed from the output; a mechanism that is (epsilon, delta)-DP lets at most so many
guesses be right (Steinke, Nasr and Jagielski, NeurIPS 2023, Thm. 5.2). `repeated`: independent runs with and without
one canary, a threshold chosen on one half and counted on the other; false and true positives then bound epsilon, and
the shift mu between two unit Gaussians that tells them apart as well (Dong, Roth and Su, JRSS-B 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta, binom

from fedseal.core.errors import InputError
from fedseal.metrics.shares import lower_limit, upper_limit

Scores = NDArray[np.float64]
_SHARES = (1.0, 0.5, 0.2, 0.1, 0.05)
"""Shares of the canaries that are guessed; each costs its part of the confidence."""
_THRESHOLDS = 200
_LARGEST = 60.0


@dataclass(frozen=True)
class LowerBound:
    """What outputs prove at a confidence.

    Attributes:
        epsilon: the mechanism cannot be (epsilon', delta)-DP for a smaller epsilon'; 0 if nothing is proven.
        mu: nor can it be mu'-GDP for a smaller mu'; None where the experiment does not speak of it.
    """

    epsilon: float
    mu: float | None = None


def one_run(present: Scores, absent: Scores, delta: float, confidence: float) -> LowerBound:
    """Return the bound from the scores of canaries that were in one run and of those that were not.

    The highest scores are guessed to be in, as many of the lowest out; the others are left open.
    """
    if len(present) + len(absent) < 2:
        raise InputError("one run needs at least two canaries.")
    scores = np.concatenate([present, absent])
    truth = np.concatenate([np.ones(len(present), bool), np.zeros(len(absent), bool)])
    order = np.argsort(scores, kind="stable")
    part = (1 - confidence) / len(_SHARES)
    best = 0.0
    for share in _SHARES:
        each = int(share * len(scores) / 2)
        if each:
            right = int(truth[order[-each:]].sum() + (~truth[order[:each]]).sum())
            best = max(best, _largest_refuted(len(scores), 2 * each, right, delta, part))
    return LowerBound(best)


def _largest_refuted(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """Return the largest epsilon under which so many right guesses are less likely than `level`."""
    if guess_probability(canaries, guesses, right, 0.0, delta) > level:
        return 0.0
    low, high = 0.0, _LARGEST
    while high - low > 1e-4:
        middle = (low + high) / 2
        refuted = guess_probability(canaries, guesses, right, middle, delta) <= level
        low, high = (middle, high) if refuted else (low, middle)
    return low


def guess_probability(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the most likely that `right` or more of the guesses are right under (epsilon, delta)-DP."""
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    steepest = float((below / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * steepest)


def repeated(present: Scores, absent: Scores, delta: float, confidence: float) -> LowerBound:
    """Return the bound from scores of independent runs with and without the canary."""
    if min(len(present), len(absent)) < 4:
        raise InputError("repeated runs need at least four with and four without the canary.")
    threshold = _threshold(present[::2], absent[::2])
    with_canary, without = present[1::2], absent[1::2]
    each = 1 - (1 - confidence) / 4  # four limits enter
    found, missed = int((with_canary > threshold).sum()), int((with_canary <= threshold).sum())
    false, quiet = int((without > threshold).sum()), int((without <= threshold).sum())
    true_low, miss_high = lower_limit(found, len(with_canary), each), upper_limit(missed, len(with_canary), each)
    quiet_low, false_high = lower_limit(quiet, len(without), each), upper_limit(false, len(without), each)
    epsilon = max(_ratio(true_low, false_high, delta), _ratio(quiet_low, miss_high, delta))
    return LowerBound(epsilon, max(0.0, float(ndtri(true_low) - ndtri(false_high))))


def _ratio(likely: float, unlikely: float, delta: float) -> float:
    return math.log((likely - delta) / unlikely) if likely - delta > unlikely else 0.0


def _threshold(present: Scores, absent: Scores) -> float:
    """Return the threshold with the largest proven shift on these scores."""
    cuts = np.quantile(np.concatenate([present, absent]), np.linspace(0, 1, _THRESHOLDS + 2)[1:-1])
    found = (present > cuts[:, None]).sum(1)
    false = (absent > cuts[:, None]).sum(1)
    true_low = np.where(found == 0, 0.0, beta.ppf(0.1, np.maximum(found, 1), len(present) - found + 1))
    false_high = np.where(false == len(absent), 1.0, beta.ppf(0.9, false + 1, np.maximum(len(absent) - false, 1)))
    return float(cuts[int(np.argmax(ndtri(true_low) - ndtri(false_high)))])
