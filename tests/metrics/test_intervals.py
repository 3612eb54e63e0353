from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import bootstrap

from fedseal.core.errors import InputError
from fedseal.metrics import intervals
from fedseal.metrics.intervals import Interval, bootstrap_mean


def test_it_covers_the_true_mean_about_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(3, 2, size=(300, 40))
    found = [bootstrap_mean(list(row), resamples=500, seed=i) for i, row in enumerate(draws)]
    covered = np.mean([i.low <= 3 <= i.high for i in found])  # type: ignore[operator]
    assert 0.90 <= covered <= 0.975
    half = [bootstrap_mean(list(row), level=0.5, resamples=500, seed=i) for i, row in enumerate(draws)]
    assert 0.42 <= np.mean([i.low <= 3 <= i.high for i in half]) <= 0.57  # type: ignore[operator]


def test_it_agrees_with_scipy():
    values = np.random.default_rng(1).exponential(5, size=60)
    ours = bootstrap_mean(list(values), resamples=20000)
    theirs = bootstrap((values,), np.mean, n_resamples=20000, method="percentile", rng=0).confidence_interval
    assert ours.mean == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.1)


def test_the_seed_decides():
    values = [1.0, 5.0, 2.0, 8.0]
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    wide = list(np.random.default_rng(0).normal(size=30))
    assert bootstrap_mean(wide, seed=3) != bootstrap_mean(wide, seed=4)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch):
    values = list(np.random.default_rng(0).normal(size=30))
    whole = bootstrap_mean(values)
    monkeypatch.setattr(intervals, "_CHUNK", 1000)
    assert bootstrap_mean(values) == whole


def test_one_value_has_no_bounds():
    interval = bootstrap_mean([7.5])
    assert interval == Interval(7.5, None, None, 1)
    assert interval.is_degenerate
    assert not bootstrap_mean([1.0, 2.0]).is_degenerate
    assert json.loads(json.dumps(interval.as_dict())) == {
        "mean": 7.5,
        "low": None,
        "high": None,
        "n": 1,
        "level": 0.95,
    }


def test_equal_values_give_a_point():
    assert bootstrap_mean([0.1, 0.1, 0.1]).as_dict() == pytest.approx(
        {"mean": 0.1, "low": 0.1, "high": 0.1, "n": 3, "level": 0.95}
    )


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf], [[1.0, 2.0]]])
def test_what_has_no_mean_is_refused(values: list[float]):
    with pytest.raises(InputError):
        bootstrap_mean(values)


@pytest.mark.parametrize("options", [{"level": 0}, {"level": 1}, {"level": 95}, {"resamples": 0}])
def test_nonsense_options_are_refused(options: dict[str, float]):
    with pytest.raises(InputError, match="level"):
        bootstrap_mean([1.0, 2.0], **options)  # type: ignore[arg-type]
