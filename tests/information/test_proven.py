"""What no attacker can exceed: closed forms, limits, and what is said in words."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError
from fedseal.core.privacy import PrivateRelease
from fedseal.data.registry import DATASETS
from fedseal.defences.accounting import composed_epsilon
from fedseal.defences.pipeline import build_defence
from fedseal.information.proven import advantage, best_guess, prove, success_bound
from fedseal.metrics.shares import lower_limit, upper_limit


def gaussian(multiplier: float, **more: float) -> PrivateRelease:
    return PrivateRelease("update", "gaussian", multiplier, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def public() -> Batch:
    return DATASETS.build("digits").batch(torch.arange(0, 5000, 10))


@pytest.mark.parametrize("distance", [0.1, 0.5, 1.0, 2.0])
def test_the_best_attacker_on_two_points_reaches_the_bound_exactly(distance: float):
    # x is +a or -a, seen with noise of scale 1: guessing the sign is right with probability Phi(a), a guess with 1/2
    bound = success_bound(0.5, [gaussian(1 / distance)])
    assert bound == pytest.approx(float(norm.cdf(distance)))
    assert advantage([gaussian(1 / distance)]) == pytest.approx(2 * float(norm.cdf(distance / 2)) - 1)


def test_rounds_and_steps_compose_alike():
    assert success_bound(0.1, [gaussian(2.0)], rounds=4) == pytest.approx(success_bound(0.1, [gaussian(1.0)]))
    assert success_bound(0.1, [gaussian(2.0, steps=4)]) == pytest.approx(success_bound(0.1, [gaussian(1.0)]))


def test_sampling_is_accounted_and_never_worse_than_the_definition_of_privacy():
    sampled = [gaussian(1.0, rate=0.01)]
    bound = success_bound(0.01, sampled, rounds=50)
    epsilon = composed_epsilon([(1.0, 0.01, 50)], 1e-6, "prv")
    assert 0.01 < bound <= 0.01 * math.exp(epsilon) + 1e-6 + 1e-12
    assert bound < success_bound(0.01, [gaussian(1.0)], rounds=50)


def test_laplace_noise_multiplies_a_guess_by_e_to_the_epsilon():
    assert success_bound(0.1, [PrivateRelease("update", "laplace", 2.0)]) == pytest.approx(0.1 * math.exp(0.5))
    assert success_bound(0.9, [PrivateRelease("update", "laplace", 0.01)]) == 1.0


def test_no_release_and_no_noise_prove_nothing():
    assert success_bound(0.2, []) == 1.0
    assert success_bound(0.2, [gaussian(0.0)]) == 1.0
    assert advantage([gaussian(0.0)]) == 1.0


def test_a_guess_is_counted_on_images_it_was_not_chosen_on(public: Batch):
    hits, n = best_guess(public, 10.0, False, 0)
    assert n == len(public) // 2
    informed, _ = best_guess(public, 10.0, True, 0)
    assert informed > hits  # digits of one class are alike
    assert best_guess(public, 40.0, False, 0)[0] == 0


def test_a_strong_mechanism_is_low_and_a_weak_one_proves_nothing(public: Batch):
    strong = prove([gaussian(10.0)], public, labels_known=False)
    assert strong is not None
    assert strong.is_low
    assert strong.epsilon is not None
    assert strong.epsilon < 1
    assert "no attacker rebuilds an image at 20 dB" in strong.sentence()
    weak = prove([gaussian(0.01)], public, labels_known=False)
    assert weak is not None
    assert not weak.is_low
    assert "too large to prove anything" in weak.sentence()
    assert prove([], public, labels_known=True) is None


def test_bounds_fall_with_noise_and_stay_above_the_guess(public: Batch):
    readings = [prove([gaussian(multiplier)], public, labels_known=False) for multiplier in (0.5, 1.0, 4.0, 100.0)]
    for level in (10.0, 15.0, 20.0):
        bounds = [reading.bounds[level] for reading in readings if reading is not None]
        assert bounds == sorted(bounds, reverse=True)
        assert bounds[-1] >= readings[-1].kappa[level]  # type: ignore[union-attr]


def test_too_few_public_images_are_refused():
    few = Batch(torch.rand(3, 1, 4, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(InputError, match="3 public images are too few"):
        prove([gaussian(1.0)], few, labels_known=False)


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (3, 10), (10, 10), (50, 200)])
def test_limits_are_those_of_clopper_and_pearson(hits: int, n: int):
    from scipy.stats import binomtest

    exact = binomtest(hits, n).proportion_ci(0.9, method="exact")
    assert lower_limit(hits, n, 0.95) == pytest.approx(exact.low)
    assert upper_limit(hits, n, 0.95) == pytest.approx(exact.high)


def test_pipelines_claim_what_members_do_unless_something_goes_around_it():
    def releases(spec: str) -> tuple[PrivateRelease, ...]:
        return build_defence(spec).releases()

    assert releases("gaussian:sigma=2,clip=1") == (PrivateRelease("update", "gaussian", 2.0),)
    assert releases("gaussian:sigma=2,clip=1+topk") == (PrivateRelease("update", "gaussian", 2.0),)
    assert releases("gaussian:sigma=2,clip=inf") == ()
    assert releases("gaussian:sigma=0") == ()
    assert releases("topk") == ()
