"""Claimed against actual: planted liars are caught, honest mechanisms pass, and the bounds hold at their level."""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedseal.cli import app
from fedseal.core.defence import CostReport, Defence, RoundContext
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.privacy import PrivateRelease
from fedseal.core.tensors import Tensors
from fedseal.defences.noise import GaussianNoise
from fedseal.defences.pipeline import build_defence
from fedseal.information.epsilon_bounds import guess_probability, one_run, repeated
from fedseal.information.verification import verify_dp

RUNS = 400


class NoOp(Defence):
    """Claims a small epsilon and does nothing."""

    name = "fortress"

    def report(self) -> CostReport:
        return CostReport(epsilon_accounted=1.0)


class HalfNoise(GaussianNoise):
    """Claims its sigma and adds half of it."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return GaussianNoise(self.sigma / 2, self.clip).on_update(update, context)


class NoClip(GaussianNoise):
    """Claims a bound it does not enforce."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return GaussianNoise(self.sigma, math.inf).on_update(update, context)


class FixedSeed(GaussianNoise):
    """Draws the same noise every time."""

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        context.generator.manual_seed(7)
        return super().on_update(update, context)


class FirstRoundOnly(Defence):
    """States a mechanism that is not there at all, not even in its report."""

    name = "paper-tiger"

    def releases(self) -> tuple[PrivateRelease, ...]:
        return (PrivateRelease("update", "gaussian", 1.0),)


@pytest.mark.parametrize("liar", [NoOp, HalfNoise, NoClip, FixedSeed, FirstRoundOnly])
def test_a_defence_that_leaks_more_than_it_claims_is_caught(liar: type[Defence]):
    make = partial(liar, 1.0, 1.0) if issubclass(liar, GaussianNoise) else liar
    found = verify_dp(make, runs=1200 if liar is HalfNoise else RUNS, canaries=200)
    assert found.refuted
    assert "REFUTED" in found.describe()


@pytest.mark.parametrize(
    "spec",
    [
        "gaussian:sigma=1",
        "laplace:scale=1,norm=l1",
        "dp-sgd:sigma=1",
        "fed-cdp:sigma=2",
        "dp-sgd:sigma=1,sample_rate=0.1,batch_size=2",
        "gaussian:sigma=1+topk:ratio=0.5",
    ],
)
def test_ours_leak_no_more_than_they_claim(spec: str):
    found = verify_dp(partial(build_defence, spec), runs=RUNS, canaries=300)
    assert found.claimed_epsilon is not None
    assert not found.refuted
    assert "Consistent with the claim" in found.describe()


@pytest.mark.slow
def test_an_honest_gaussian_is_measured_close_to_what_it_is():
    found = verify_dp(partial(build_defence, "gaussian:sigma=0.5"), runs=1600)
    assert found.claimed_mu == pytest.approx(2.0)
    assert found.repeated.mu is not None
    assert 1.4 < found.repeated.mu <= 2.0


@pytest.mark.slow
def test_many_canaries_in_one_round_see_samples():
    found = verify_dp(partial(build_defence, "dp-sgd:sigma=0.5"), runs=RUNS, canaries=1000)
    assert found.unit == "sample"
    assert found.one_run is not None
    assert found.one_run.epsilon > 1.5


def test_without_a_claim_there_is_nothing_to_refute():
    found = verify_dp(partial(build_defence, "topk:ratio=0.5"), runs=RUNS)
    assert found.claimed_epsilon is None
    assert not found.refuted
    assert found.proven_epsilon > 3
    assert "no claim" in found.describe()


def test_randomised_response_is_bounded_at_the_stated_level():
    # an answer is right with probability e^eps / (1 + e^eps): bounds above epsilon are errors, of which a 95 %
    # bound may make one in twenty
    source = np.random.default_rng(0)
    epsilon, wrong = 1.0, 0
    for _ in range(100):
        truth = source.random(400) < 0.5
        answer = np.where(source.random(400) < 1 / (1 + math.exp(-epsilon)), truth, ~truth)
        scores = answer + 1e-3 * source.random(400)
        wrong += one_run(scores[truth], scores[~truth], 0.0, 0.95).epsilon > epsilon
    assert wrong <= 11  # 3 sigma above a twentieth of 100


def test_repeated_runs_are_bounded_at_the_stated_level():
    source = np.random.default_rng(1)
    wrong = sum(
        (repeated(1 + source.standard_normal(300), source.standard_normal(300), 1e-5, 0.95).mu or 0) > 1
        for _ in range(100)
    )
    assert wrong <= 11


def test_the_probability_of_guesses_is_binomial_without_delta_and_grows_with_it():
    assert guess_probability(10, 10, 10, 0.0, 0.0) == pytest.approx(2**-10)
    assert guess_probability(10, 10, 10, 0.0, 1e-3) > 2**-10
    assert guess_probability(10, 10, 0, 3.0, 1e-3) == 1.0


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="too few to prove"):
        verify_dp(Defence, runs=10)
    with pytest.raises(CapabilityError, match="protocol between several parties"):
        verify_dp(partial(build_defence, "secagg"), runs=RUNS)


def test_the_command_line_tells_and_exits():
    done = CliRunner().invoke(app, ["verify-dp", "gaussian:sigma=1", "--runs", "200", "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["refuted"] is False
    assert told["claimed_mu"] == 1.0


def test_the_model_behind_the_canaries_leaves_no_trace():
    torch.manual_seed(3)
    before = torch.default_generator.get_state()
    verify_dp(partial(build_defence, "gaussian"), runs=100, canaries=100)
    assert torch.equal(before, torch.default_generator.get_state())
