"""Intervals cover what they say, in simulation, and refuse what has none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from fedseal.core.errors import InputError
from fedseal.metrics.intervals import (
    FEWEST,
    Interval,
    clustered_share,
    mean_interval,
    nested_mean,
    share_interval,
)

DRAWS = 2000
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
LAWS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda r, s: r.normal(size=s), 0.0),
    "skewed": (lambda r, s: r.lognormal(0, 0.5, size=s), math.exp(0.125)),
    "bimodal": (lambda r, s: r.normal(size=s) + 3 * (r.random(s) < 0.5), 1.5),
}


def coverage(draw: Draw, mean: float, n: int) -> float:
    found = [mean_interval(list(row)) for row in draw(np.random.default_rng(0), (DRAWS, n))]
    return float(np.mean([i.low <= mean <= i.high for i in found]))  # type: ignore[operator]


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize("law", LAWS)
def test_a_mean_is_covered_in_93_to_97_per_cent_of_draws(law: str, n: int):
    assert 0.93 - 0.01 <= coverage(*LAWS[law], n) <= 0.97 + 0.01  # 2,000 draws tell it to 0.01


def test_modes_far_apart_are_beyond_four_values_and_safe_from_eight():
    def apart(r: np.random.Generator, s: tuple[int, int]) -> np.ndarray:
        return np.asarray(r.normal(size=s) + 10 * (r.random(s) < 0.5))

    assert 0.86 < coverage(apart, 5.0, 4) < 0.93  # all four come from one mode in one draw of eight
    assert coverage(apart, 5.0, 8) > 0.95


def test_nested_groups_cover_where_pooled_ones_would_not():
    source = np.random.default_rng(0)
    pooled, nested = [], []
    for _ in range(300):
        seeds = source.normal(size=(8, 1))
        groups = (seeds + 0.3 * source.normal(size=(8, 6))).tolist()
        nested.append(nested_mean(groups))
        pooled.append(mean_interval([value for group in groups for value in group]))
    covered = [np.mean([i.low <= 0 <= i.high for i in found]) for found in (nested, pooled)]  # type: ignore[operator]
    assert covered[0] > 0.91
    assert covered[1] < 0.75


def test_one_group_is_its_values_and_three_groups_are_too_few():
    values = [1.0, 5.0, 2.0, 8.0, 3.0]
    assert nested_mean([values]) == mean_interval(values)
    assert nested_mean([values, values, values]).is_degenerate


def test_the_seed_decides_what_is_drawn_and_few_values_are_enumerated():
    wide = list(np.random.default_rng(0).normal(size=30))
    assert mean_interval(wide, seed=3) == mean_interval(wide, seed=3)
    assert mean_interval(wide, seed=3) != mean_interval(wide, seed=4)
    assert mean_interval(wide[:6], seed=3) == mean_interval(wide[:6], seed=4)


def test_many_values_have_students_interval():
    values = np.random.default_rng(0).normal(2, 3, size=2000)
    found = mean_interval(list(values))
    assert found.low == pytest.approx(values.mean() - 1.9612 * values.std(ddof=1) / math.sqrt(2000), abs=1e-4)


def test_fewer_than_four_values_have_no_bounds():
    for n in range(1, FEWEST):
        assert mean_interval([7.5] * n) == Interval(7.5, None, None, n)
    assert mean_interval([7.5]).is_degenerate
    assert not mean_interval([1.0, 2.0, 4.0, 8.0]).is_degenerate
    assert json.loads(json.dumps(mean_interval([7.5]).as_dict())) == {
        "mean": 7.5,
        "low": None,
        "high": None,
        "n": 1,
        "level": 0.95,
    }


def test_equal_values_give_a_point_and_tied_ones_a_finite_interval():
    point = mean_interval([0.1] * 5)
    assert (point.low, point.high) == (pytest.approx(0.1), pytest.approx(0.1))
    tied = mean_interval([100.0, 100.0, 100.0, 9.0])
    assert tied.low is not None
    assert tied.high is not None
    assert -400 < tied.low < 77 < tied.high < 400


def test_shares_are_clopper_and_pearsons():
    for k, n in ((0, 8), (3, 8), (8, 8), (50, 200)):
        ours, theirs = share_interval(k, n), binomtest(k, n).proportion_ci()
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert share_interval(7, 8).low == pytest.approx(beta.ppf(0.025, 7, 2))


def test_members_of_a_batch_are_not_independent_tries():
    alone = clustered_share([[1.0], [0.0]] * 8)
    together = clustered_share([[1.0] * 8, [0.0] * 8])
    spread = clustered_share([[1.0, 0.0]] * 8)
    assert alone.mean == together.mean == spread.mean == 0.5
    assert (together.high or 0) - (together.low or 0) > 0.9
    assert (alone.high or 0) - (alone.low or 0) == pytest.approx(0.5, abs=0.06)
    assert clustered_share([[1.0] * 64] * 4).low == pytest.approx(share_interval(4, 4).low)
    source = np.random.default_rng(0)
    inside = []
    for shares in source.beta(0.9, 2.1, size=(1000, 12)):
        found = clustered_share(source.binomial(1, shares[:, None], size=(12, 8)).tolist())
        inside.append((found.low or 0) <= 0.3 <= (found.high or 0))
    assert 0.92 <= np.mean(inside) <= 0.98


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf], [[1.0, 2.0]]])
def test_what_has_no_mean_is_refused(values: list[float]):
    with pytest.raises(InputError):
        mean_interval(values)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_nonsense_levels_are_refused(level: float):
    with pytest.raises(InputError, match="level"):
        mean_interval([1.0, 2.0], level=level)
    with pytest.raises(InputError, match="share"):
        share_interval(1, 2, level=level)


@pytest.mark.parametrize(("successes", "n"), [(-1, 4), (5, 4), (0, 0)])
def test_impossible_shares_are_refused(successes: int, n: int):
    with pytest.raises(InputError, match="successes"):
        share_interval(successes, n)
    with pytest.raises(InputError, match="batch"):
        clustered_share([])
