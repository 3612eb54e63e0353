"""Confidence intervals of means that cover what they say: bootstrap-t.

The percentile bootstrap over n trial means covers .80 / .88 / .92 at n = 4 / 8 / 16 for a nominal .95, Student's t .88
on skewed values at n = 4. The bootstrap-t (Efron 1981; Hall 1988) takes the quantiles of the studentised mean from the
sample itself. By itself it is too short where a small sample looks less skewed than its law, and too long for flat laws
once there are a dozen values; so no side is shorter than most of Student's, and with more values those of a sample that
looks flat, by its kurtosis, give way to Student's. tests/metrics/test_intervals.py holds the coverage between .93 and
.97 for normal, flat, skewed, long-tailed and overlapping bimodal values at n = 4, 8 and 16. Two modes far apart are
beyond any method at n = 4: with probability 1/8 all four values come from one of them (coverage about .91; above .97
from n = 8 on). Below four values there is no interval at all. Shares are `fedseal.metrics.shares`'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations_with_replacement
from statistics import fmean, stdev
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fedseal.core.errors import InputError
from fedseal.core.seeds import derive_seed

Floats: TypeAlias = NDArray[np.float64]

FEWEST = 4
"""Values below which no interval is honest."""

_ENUMERATED = 7
"""Up to here all resamples are enumerated, 1,716 of them; above, drawn."""
_RESAMPLES = 2000
_MANY = 500
"""Values above which Student's t is as good, and resampling a waste."""
_WIDEST = 4.0
"""Limit of a bootstrap quantile, in those of Student's t: resamples of tied values have no spread at all."""

_SHORTEST = 0.85
"""The least reach to each side, in that of Student's t."""
_FLAT, _ROUND = 1.8, 3.0
"""Kurtosis of a sample taken as flat (that of a uniform law), and as round (that of a normal one)."""
_FEW, _DOZENS = 8, 16
"""Up to the first number of values a kurtosis says nothing; from the second on it is believed."""


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    Attributes:
        mean: of the values.
        low: lower end; None if there are too few values to say anything about the spread.
        high: upper end; None as `low`.
        n: number of independent values.
        level: confidence level of the interval.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    level: float = 0.95

    @property
    def is_degenerate(self) -> bool:
        """Whether there are no bounds, because there are fewer than `FEWEST` values."""
        return self.low is None or self.high is None

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the interval as plain data."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n, "level": self.level}


def mean_interval(values: Sequence[float], *, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the mean of `values` with its equal-tailed bootstrap-t interval.

    The same values, level and seed give the same interval; up to seven values no seed is needed.

    Args:
        values: at least one finite number, independent draws (batches, seeds); below four there are no bounds.
        level: confidence level, strictly between 0 and 1.
        seed: of the resampling.
    """
    data = _checked(values, level)
    mean, n = float(data.mean()), data.size
    if n < FEWEST:
        return Interval(mean, None, None, n, level)
    centred = data - mean
    error = math.sqrt(float((centred**2).sum()) / (n - 1) / n)
    if error <= 1e-12 * max(1.0, abs(mean)):
        return Interval(mean, mean, mean, n, level)
    student = float(special.stdtrit(n - 1, (1 + level) / 2))
    if n > _MANY:
        return Interval(mean, mean - student * error, mean + student * error, n, level)
    studentised, weights = _studentised(centred, error, seed)
    believed = _share_of_bootstrap(centred)
    down, up = (
        student * float(np.clip(1 + believed * (quantile / student - 1), _SHORTEST, _WIDEST))
        for quantile in (
            _quantile(studentised, weights, (1 + level) / 2),
            -_quantile(studentised, weights, (1 - level) / 2),
        )
    )
    return Interval(mean, mean - down * error, mean + up * error, n, level)


def nested_mean(groups: Sequence[Sequence[float]], *, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the mean of values in groups, such as batches under each of several weight seeds.

    Batches of one set of weights share what is particular to it, so with several groups their means are the independent
    values; with one, its values are, and the interval speaks of these weights alone. Two or three means have Student's
    interval, if there are four values in all: a mean of several batches is close to normal, which single values need
    not be. It is wide, as two or three sets of weights tell little of all others.

    Args:
        groups: the values of each group; empty ones do not count.
        level: confidence level, strictly between 0 and 1.
        seed: of the resampling.
    """
    filled = [group for group in groups if len(group)]
    if len(filled) == 1:
        return mean_interval(filled[0], level=level, seed=seed)
    found = mean_interval([fmean(group) for group in filled], level=level, seed=seed)
    if not found.is_degenerate or sum(map(len, filled)) < FEWEST:
        return found
    spread = stdev(fmean(group) for group in filled) / math.sqrt(len(filled))
    reach = float(special.stdtrit(len(filled) - 1, (1 + level) / 2)) * spread
    return Interval(found.mean, found.mean - reach, found.mean + reach, found.n, level)


def _checked(values: Sequence[float], level: float) -> Floats:
    data: Floats = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0:
        raise InputError(
            f"an interval needs a list of at least one value, got shape {list(data.shape)}.",
            hint="If every trial failed there is no mean to report: say so instead.",
        )
    if not np.isfinite(data).all():
        raise InputError(
            f"{int((~np.isfinite(data)).sum())} of {data.size} values are NaN or infinite.",
            hint="A failed trial is reported as failed; leave it out of the mean by name, not by value.",
        )
    if not 0 < level < 1:
        raise InputError(f"an interval needs 0 < level < 1, got {level}.")
    return data


def _share_of_bootstrap(centred: Floats) -> float:
    """Return how far the bootstrap's quantiles are believed, against Student's: less for many values of a flat law."""
    kurtosis = float((centred**4).mean() / (centred**2).mean() ** 2)
    flatness = 1 - min(1.0, max(0.0, (kurtosis - _FLAT) / (_ROUND - _FLAT)))
    return 1 - flatness * min(1.0, max(0.0, (centred.size - _FEW) / (_DOZENS - _FEW)))


def _studentised(centred: Floats, error: float, seed: int) -> tuple[Floats, Floats]:
    """Return (mean* - mean) / error* of resamples and their probabilities."""
    counts, weights = _all_resamples(centred.size) if centred.size <= _ENUMERATED else _resamples(centred.size, seed)
    n = centred.size
    means = counts @ centred / n
    variances = np.maximum(counts @ centred**2 / n - means**2, 0) * n / (n - 1)
    return means / np.maximum(np.sqrt(variances / n), 1e-9 * error), weights


@lru_cache(maxsize=16)
def _resamples(n: int, seed: int) -> tuple[Floats, Floats]:
    """Return drawn resamples of n values as counts (row r takes value i `counts[r, i]` times), equally likely."""
    generator = np.random.default_rng(derive_seed(seed, "bootstrap"))
    drawn = generator.multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    return drawn.astype(np.float64), np.full(_RESAMPLES, 1 / _RESAMPLES)


@cache
def _all_resamples(n: int) -> tuple[Floats, Floats]:
    """Return every resample of n values as counts, and its probability (multinomial)."""
    rows = [np.bincount(chosen, minlength=n) for chosen in combinations_with_replacement(range(n), n)]
    counts = np.asarray(rows, dtype=np.float64)
    weights = np.exp(special.gammaln(n + 1) - special.gammaln(counts + 1).sum(1) - n * math.log(n))
    return counts, weights / weights.sum()


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(values, kind="stable")
    place = np.searchsorted(np.cumsum(weights[order]), share - 1e-12)
    return float(values[order][min(int(place), values.size - 1)])
