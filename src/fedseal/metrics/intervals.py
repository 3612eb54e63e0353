"""Percentile bootstrap intervals of a mean (Efron 1979): no mean is reported without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedseal.core.errors import InputError
from fedseal.core.seeds import derive_seed

_CHUNK = 4_000_000
"""Resampled values held at once."""


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    Attributes:
        mean: of the values.
        low: lower end; None if there is a single value, which says nothing about the spread.
        high: upper end; None as `low`.
        n: number of values.
        level: confidence level of the interval.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    level: float = 0.95

    @property
    def is_degenerate(self) -> bool:
        """Whether there are no bounds, because there is only one value."""
        return self.low is None or self.high is None

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the interval as plain data."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n, "level": self.level}


def bootstrap_mean(values: Sequence[float], *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Return the mean of `values` with its percentile bootstrap interval.

    The same values, level and seed give the same interval. The values must be independent draws (images,
    batches), and with few of them the interval is too narrow: about 92 % coverage instead of 95 % for 20
    values.

    Args:
        values: at least one finite number; a single one gives an interval without bounds.
        level: confidence level, strictly between 0 and 1.
        resamples: number of bootstrap samples.
        seed: of the resampling.
    """
    data = np.asarray(values, dtype=np.float64)
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
    if not 0 < level < 1 or resamples < 1:
        raise InputError(f"an interval needs 0 < level < 1 and resamples >= 1, got {level} and {resamples}.")
    mean = float(data.mean())
    if data.size == 1:
        return Interval(mean, None, None, 1, level)
    generator = np.random.default_rng(derive_seed(seed, "bootstrap"))
    rows = max(1, _CHUNK // data.size)
    means = np.concatenate(
        [
            data[generator.integers(0, data.size, size=(min(rows, resamples - start), data.size))].mean(axis=1)
            for start in range(0, resamples, rows)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, min(float(low), mean), max(float(high), mean), data.size, level)
