"""Intervals cover what they say, in simulation, and refuse what has none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from fedseal.core.errors import InputError
from fedseal.metrics.intervals import (
    FEWEST,
    Interval,
    mean_interval,
    nested_mean,
)

DRAWS = 1500
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
LAWS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda r, s: r.normal(size=s), 0.0),
    "skewed": (lambda r, s: r.lognormal(0, 0.5, size=s), math.exp(0.125)),
    "exponential": (lambda r, s: r.exponential(size=s), 1.0),
    "uniform": (lambda r, s: r.random(s), 0.5),
    "long tails": (lambda r, s: r.standard_t(5, size=s), 0.0),
    "bimodal": (lambda r, s: r.normal(size=s) + 3 * (r.random(s) < 0.5), 1.5),
}


def coverage(draw: Draw, mean: float, n: int) -> float:
    found = [mean_interval(list(row)) for row in draw(np.random.default_rng(0), (DRAWS, n))]
    return float(np.mean([i.low <= mean <= i.high for i in found]))  # type: ignore[operator]


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize("law", LAWS)
def test_a_mean_is_covered_in_93_to_97_per_cent_of_draws(law: str, n: int):
    assert 0.93 - 0.01 <= coverage(*LAWS[law], n) <= 0.97 + 0.01  # 1,500 draws tell it to 0.01


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


def test_one_group_is_its_values_and_two_groups_have_students_interval():
    values = [1.0, 5.0, 2.0, 8.0, 3.0]
    assert nested_mean([values]) == mean_interval(values)
    found = nested_mean([[1.0, 3.0], [4.0, 8.0]])
    assert (found.mean, found.n) == (4.0, 2)
    assert found.low == pytest.approx(4 - 12.7062 * 2)
    assert nested_mean([[1.0], [2.0], [3.0]]).is_degenerate
    assert nested_mean([[], values]) == mean_interval(values)


@pytest.mark.parametrize("seeds", [2, 3, 4, 8])
def test_seeds_that_differ_more_than_their_batches_are_covered(seeds: int):
    source = np.random.default_rng(seeds)
    inside = []
    for _ in range(DRAWS):
        groups = source.normal(size=(seeds, 1)) + 0.5 * (source.exponential(size=(seeds, 4)) - 1)
        found = nested_mean(groups.tolist())
        inside.append(found.low <= 0 <= found.high)  # type: ignore[operator]
    assert 0.93 - 0.01 <= np.mean(inside) <= 0.97 + 0.01


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


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf], [[1.0, 2.0]]])
def test_what_has_no_mean_is_refused(values: list[float]):
    with pytest.raises(InputError):
        mean_interval(values)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_nonsense_levels_are_refused(level: float):
    with pytest.raises(InputError, match="level"):
        mean_interval([1.0, 2.0], level=level)
