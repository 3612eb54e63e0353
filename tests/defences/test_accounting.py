"""The privacy ledger: closed forms, composition, budgets, state."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.defences import accounting
from fedseal.defences.accounting import BudgetSpentError, PrivacyLedger, composed_epsilon, gaussian_epsilon


def leaked(mu: float, epsilon: float) -> float:
    """Balle and Wang's Theorem 8 in its textbook form."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@given(st.floats(0.05, 8), st.sampled_from([1e-3, 1e-5, 1e-7]))
def test_the_closed_form_leaks_exactly_delta(mu: float, delta: float):
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon == 0:
        assert leaked(mu, 1e-9) <= delta
    else:
        assert leaked(mu, epsilon) == pytest.approx(delta, rel=1e-5)


def test_published_and_extreme_values():
    assert gaussian_epsilon(1 / 0.048, 1e-5) == pytest.approx(305, abs=1)
    assert gaussian_epsilon(0, 1e-5) == 0
    assert gaussian_epsilon(1e-6, 1e-5) == 0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    mu = 1e9  # here epsilon = mu^2/2 + 4.26 mu
    assert (gaussian_epsilon(mu, 1e-5) - mu**2 / 2) / mu == pytest.approx(-norm.ppf(1e-5), rel=1e-6)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0.5, 5), st.just(1.0), st.integers(1, 50)), min_size=1, max_size=5))
def test_composition_ignores_the_order_and_only_grows(history: list[tuple[float, float, int]]):
    whole = composed_epsilon(history, 1e-5, "prv")
    assert composed_epsilon(history[::-1], 1e-5, "prv") == pytest.approx(whole, rel=1e-9)
    assert composed_epsilon(history[1:], 1e-5, "prv") <= whole
    mu = math.sqrt(sum(count / multiplier**2 for multiplier, _, count in history))
    assert whole == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-9)


def test_a_step_without_noise_has_no_epsilon():
    assert composed_epsilon([(1.0, 1.0, 5), (0.0, 1.0, 1)], 1e-5, "prv") == math.inf
    assert composed_epsilon([], 1e-5, "prv") == 0


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["prv", "rdp"])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_budget_is_the_last_step_that_fits(accountant: str, rate: float):
    pytest.importorskip("opacus")
    ledger = PrivacyLedger("dp-sgd", 1e-5, accountant, budget=9.0)  # type: ignore[arg-type]
    multiplier = 1.2

    def go_on() -> None:
        while True:
            ledger.spend(multiplier, rate)

    with pytest.raises(BudgetSpentError, match=r"budget of dp-sgd is spent: \d+ steps .* budget = 9") as caught:
        go_on()
    spent = ledger.steps
    assert spent > 1
    assert ledger.epsilon() <= 9
    assert composed_epsilon([(multiplier, rate, spent + 1)], 1e-5, accountant) > 9  # type: ignore[arg-type]
    with pytest.raises(BudgetSpentError):
        ledger.spend(multiplier, rate)
    assert ledger.steps == spent  # nothing was booked
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own error
    assert isinstance(again, FedsealError)
    assert "Nothing was sent" in str(again)


def test_the_ledger_survives_a_restart():
    ledger = PrivacyLedger("dp-sgd", 1e-5, "prv", None)
    assert ledger.state_dict() == {}
    for multiplier in (1.0, 1.0, 2.5):
        ledger.spend(multiplier, 1.0)
    other = PrivacyLedger("dp-sgd", 1e-5, "prv", None)
    other.load_state_dict(ledger.state_dict())
    assert (other.steps, other.epsilon()) == (3, ledger.epsilon())
    other.spend(1.0, 1.0)
    assert other.epsilon() > ledger.epsilon()
    for bad in ({"foreign": torch.ones(3)}, {"history": torch.ones(3)}):
        with pytest.raises(InputError, match="not a privacy ledger"):
            other.load_state_dict(bad)


@pytest.mark.parametrize(
    ("delta", "budget"), [(0.0, None), (1.0, None), (math.nan, None), (1e-5, 0.0), (1e-5, math.nan)]
)
def test_nonsense_is_refused(delta: float, budget: float | None):
    with pytest.raises(UsageError, match="dp-sgd needs"):
        PrivacyLedger("dp-sgd", delta, "prv", budget)


def test_without_opacus_the_closed_form_works_and_the_rest_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accounting.importlib.util, "find_spec", lambda name: None)
    assert composed_epsilon([(1.0, 1.0, 10)], 1e-5, "prv") == pytest.approx(17.86, abs=0.02)
    for accountant, rate in (("rdp", 1.0), ("prv", 0.5)):
        with pytest.raises(InputError, match="Opacus") as caught:
            composed_epsilon([(1.0, rate, 10)], 1e-5, accountant)  # type: ignore[arg-type]
        assert caught.value.hint == 'Run `pip install "fedseal[dp]"`.'
