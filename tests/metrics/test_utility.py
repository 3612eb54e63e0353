"""Utility: PMM, rounds to a target, and their intervals over seeds."""

from __future__ import annotations

import pytest

from fedseal.core.errors import InputError
from fedseal.metrics.utility import pmm, pmm_over_seeds, reached_target, rounds_to_target

CURVE = [(0, 0.1), (5, 0.4), (10, 0.35), (15, 0.6)]


def test_pmm_is_the_share_of_accuracy_that_is_kept_in_per_cent() -> None:
    """Refiner's Table 7: 90.69 with an undefended accuracy of 54.01 % on CIFAR-10."""
    assert pmm(0.9069 * 0.5401, 0.5401) == pytest.approx(90.69)
    assert pmm(0.5, 0.5) == 100
    assert pmm(0.0, 0.5) == 0
    assert pmm(0.6, 0.5) == pytest.approx(120)


@pytest.mark.parametrize(("defended", "plain", "said"), [(54.0, 0.5, "between 0 and 1"), (0.5, 0.0, "accuracy of 0")])
def test_pmm_refuses_what_it_cannot_mean(defended: float, plain: float, said: str) -> None:
    with pytest.raises(InputError, match=said):
        pmm(defended, plain)


def test_pmm_is_averaged_over_pairs_of_twins_not_over_runs() -> None:
    interval = pmm_over_seeds([0.2, 0.8], [0.4, 0.8])
    assert interval.mean == pytest.approx((50 + 100) / 2)  # the ratio of the means would be 83
    assert interval.n == 2
    assert interval.low is None  # two seeds say nothing about their spread
    four = pmm_over_seeds([0.2, 0.8, 0.3, 0.7], [0.4, 0.8, 0.4, 0.8])
    assert four.low is not None
    assert four.high is not None
    assert four.low <= four.mean <= four.high
    with pytest.raises(InputError, match="2 defended runs have 1 twins"):
        pmm_over_seeds([0.2, 0.8], [0.4])


@pytest.mark.parametrize(("target", "rounds"), [(0.1, 0), (0.3, 5), (0.4, 5), (0.41, 15), (0.61, None)])
def test_rounds_to_a_target_are_those_of_the_first_measurement_that_shows_it(target: float, rounds: int | None) -> None:
    assert rounds_to_target(CURVE, target) == rounds


def test_runs_that_miss_a_target_are_counted_not_averaged() -> None:
    late = [(0, 0.1), (20, 0.45)]
    never = [(0, 0.1), (20, 0.2)]
    interval, reached = reached_target([CURVE, late, never], 0.4)
    assert interval is not None
    assert interval.mean == pytest.approx(12.5)
    assert reached == 2
    assert reached_target([never], 0.4) == (None, 0)
