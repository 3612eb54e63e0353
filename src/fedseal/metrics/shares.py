"""Shares, such as that of originals picked out: the interval that is printed, and the limits that decide.

A share comes in steps, so no interval covers it in exactly 95 % of draws. Clopper and Pearson's (Biometrika 1934) does
so in at least 95 % for every probability, and in 99.2 / 98.6 / 97.9 % on average over all of them at n = 4 / 8 / 16:
it says less than is known. Printed is Jeffreys' interval, closed at 0 and 1, as Brown, Cai and DasGupta (Statistical
Science 2001) recommend for few tries: 96.0 / 95.4 / 95.2 % on average, 87 % at the worst probability. What decides on a
leak never rests on an average: tests are exact, and so are `lower_limit` and `upper_limit`, Clopper and Pearson's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from fedseal.core.errors import InputError
from fedseal.metrics.intervals import Interval


def share_interval(successes: float, n: float, *, level: float = 0.95) -> Interval:
    """Return the share `successes / n` with Jeffreys' interval, from 0 where none succeeded and to 1 where all did.

    Args:
        successes: between 0 and `n`.
        n: independent tries; a fraction is an effective number, see `clustered_share`.
        level: confidence level, strictly between 0 and 1.
    """
    _check(successes, n, level)
    tail, failures = (1 - level) / 2, n - successes
    low = 0.0 if successes == 0 else float(special.betaincinv(successes + 0.5, failures + 0.5, tail))
    high = 1.0 if failures == 0 else float(special.betaincinv(successes + 0.5, failures + 0.5, 1 - tail))
    return Interval(successes / n, low, high, math.floor(n), level)


def upper_limit(successes: float, n: float, confidence: float) -> float:
    """Return the largest probability that `successes` of `n` do not refute, one-sided at `confidence`, exactly."""
    _check(successes, n, confidence)
    return 1.0 if successes == n else float(special.betaincinv(successes + 1, n - successes, confidence))


def lower_limit(successes: float, n: float, confidence: float) -> float:
    """Return the least probability that `successes` of `n` do not refute, one-sided at `confidence`, exactly."""
    _check(successes, n, confidence)
    return 0.0 if successes == 0 else float(special.betaincinv(successes, n - successes + 1, 1 - confidence))


def clustered_share(groups: Sequence[Sequence[float]], *, level: float = 0.95, exact: bool = False) -> Interval:
    """Return the share of successes in batches, whose members are not independent, with its interval.

    Args:
        groups: one list per batch, of 0 and 1 or of shares.
        level: confidence level, strictly between 0 and 1.
        exact: Clopper and Pearson's limits, for what is to be decided by them.
    """
    share, effective = effective_tries(groups)
    hits, count = min(share * effective, effective), sum(len(group) for group in groups)
    if exact:
        tail = (1 + level) / 2
        return Interval(share, lower_limit(hits, effective, tail), upper_limit(hits, effective, tail), count, level)
    found = share_interval(hits, effective, level=level)
    return Interval(share, found.low, found.high, count, level)


def effective_tries(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the share of successes in batches and how many independent tries they are worth (Korn and Graubard 1998).

    Estimated from the spread between batches and never above the number of members; where all succeed or all fail
    nothing can be estimated, and only batches count.
    """
    sizes = np.asarray([len(group) for group in groups if len(group)], dtype=np.float64)
    sums = np.asarray([sum(group) for group in groups if len(group)], dtype=np.float64)
    if not sizes.size:
        raise InputError("a share needs at least one batch.", hint="If every trial failed, say so instead.")
    total, share, batches = float(sizes.sum()), float(sums.sum() / sizes.sum()), sizes.size
    if not 0 < share < 1 or batches < 2:
        return share, float(batches)
    spread = float(((sums - share * sizes) ** 2).sum()) * batches / (batches - 1) / total**2
    return share, total if spread <= 0 else min(total, share * (1 - share) / spread)


def _check(successes: float, n: float, level: float) -> None:
    if n <= 0 or not 0 <= successes <= n or not 0 < level < 1:
        raise InputError(f"a share needs 0 <= successes <= n, n > 0 and 0 < level < 1, got {successes}, {n}, {level}.")
