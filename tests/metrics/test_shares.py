"""Shares: the printed interval covers 95 % on average, the limits that decide never less."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from fedseal.core.errors import InputError
from fedseal.metrics.shares import clustered_share, effective_tries, lower_limit, share_interval, upper_limit

PROBABILITIES = np.linspace(0.0005, 0.9995, 1000)


def coverage(low: list[float], high: list[float]) -> np.ndarray:
    """Return how often each of `PROBABILITIES` lies between the ends found for 0 to n successes, exactly."""
    n = len(low) - 1
    inside = [(low[k] <= PROBABILITIES) & (high[k] >= PROBABILITIES) for k in range(n + 1)]
    return np.asarray(sum(binom.pmf(k, n, PROBABILITIES) * part for k, part in enumerate(inside)))


@pytest.mark.parametrize("n", [4, 8, 16])
def test_a_share_is_covered_in_93_to_97_per_cent_on_average(n: int):
    found = [share_interval(k, n) for k in range(n + 1)]
    covered = coverage([i.low or 0 for i in found], [i.high or 0 for i in found])
    assert 0.93 <= covered.mean() <= 0.97
    assert covered.min() > 0.86


@pytest.mark.parametrize("n", [4, 8, 16])
def test_limits_that_decide_never_cover_less_than_they_say(n: int):
    low = [lower_limit(k, n, 0.975) for k in range(n + 1)]
    high = [upper_limit(k, n, 0.975) for k in range(n + 1)]
    assert coverage(low, high).min() >= 0.95
    for k in range(n + 1):
        theirs = binomtest(k, n).proportion_ci()
        assert (low[k], high[k]) == pytest.approx((theirs.low, theirs.high))


def test_nothing_and_everything_reach_the_ends():
    assert share_interval(0, 8).low == 0
    assert share_interval(8, 8).high == 1
    assert (share_interval(0, 8).high or 0) == pytest.approx(1 - (share_interval(8, 8).low or 0))


def test_members_of_a_batch_are_not_independent_tries():
    alone = clustered_share([[1.0], [0.0]] * 8)
    together = clustered_share([[1.0] * 8, [0.0] * 8])
    spread = clustered_share([[1.0, 0.0]] * 8)
    assert alone.mean == together.mean == spread.mean == 0.5
    assert (together.high or 0) - (together.low or 0) > 0.9
    assert (alone.high or 0) - (alone.low or 0) == pytest.approx(0.47, abs=0.06)
    assert clustered_share([[1.0] * 64] * 4).low == pytest.approx(share_interval(4, 4).low)
    assert effective_tries([[1.0] * 64] * 4) == (1.0, 4.0)
    assert clustered_share([[1.0]] * 8, exact=True).low == pytest.approx(binomtest(8, 8).proportion_ci().low)


def test_shares_of_batches_that_differ_are_covered():
    source = np.random.default_rng(0)
    inside = []
    for shares in source.beta(0.9, 2.1, size=(1000, 16)):
        found = clustered_share(source.binomial(1, shares[:, None], size=(16, 8)).tolist())
        inside.append((found.low or 0) <= 0.3 <= (found.high or 0))
    assert 0.92 <= np.mean(inside) <= 0.98


@pytest.mark.parametrize(
    ("successes", "n", "level"), [(-1, 4, 0.95), (5, 4, 0.95), (0, 0, 0.95), (1, 2, 0), (1, 2, 95)]
)
def test_impossible_shares_are_refused(successes: int, n: int, level: float):
    for refuse in (share_interval, lambda k, m, level: lower_limit(k, m, level)):
        with pytest.raises(InputError, match="successes"):
            refuse(successes, n, level=level)
    with pytest.raises(InputError, match="batch"):
        clustered_share([])
