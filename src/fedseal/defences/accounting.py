"""What differentially private steps have cost so far: a ledger of Gaussian mechanisms, and the epsilon they add up to.

A step is (noise multiplier, sampling rate). Without subsampling the composition is one Gaussian mechanism and its
epsilon is exact (Balle and Wang, ICML 2018, Thm. 8); with it, Opacus' accountants are asked: `rdp` (Mironov 2017) or
`prv` (Gopi et al. 2021). Neighbouring data sets differ by one added or removed sample. Departure: Opacus' PRV
arithmetic overflows at large epsilon (707 where RDP says 5586), so beyond RDP epsilon 200 the RDP bound is used.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import torch
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr
from torch import Tensor

from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.privacy import PrivateRelease

Accountant: TypeAlias = Literal["prv", "rdp"]
"""Which accountant composes subsampled steps."""

Steps: TypeAlias = tuple[float, float, int]
"""A noise multiplier, a sampling rate, and how many steps were taken with both."""

_PRV_RANGE = 200.0


class BudgetSpentError(FedsealError):
    """One more step would cost more privacy than was granted; nothing is sent."""


def require_opacus() -> None:
    """Refuse to go on without Opacus, without importing it yet."""
    if importlib.util.find_spec("opacus") is None:
        raise InputError(
            "accounting of subsampled steps, RDP and the replacement of BatchNorm need Opacus, which is not installed.",
            hint='Run `pip install "fedseal[dp]"`.',
        )


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of a Gaussian mechanism with sensitivity / std = `mu`.

    With y = mu/2 - epsilon/mu the condition reads Phi(y) - exp(-y^2/2) erfcx((mu - y)/sqrt 2)/2 = delta, which loses
    no digits however large epsilon is.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf

    def excess(y: float) -> float:
        leaked = ndtr(y) - math.exp(-y * y / 2) * erfcx((mu - y) / math.sqrt(2)) / 2
        return float(leaked) / delta - 1

    if excess(mu / 2) <= 0:
        return 0.0
    y = brentq(excess, -40.0, mu / 2, xtol=1e-13)
    return max(0.0, mu * (mu / 2 - float(y)))


def composed_epsilon(history: Sequence[Steps], delta: float, accountant: Accountant) -> float:
    """Return the epsilon of all steps together; infinite if one of them added no noise."""
    steps = _merged(history)
    if any(multiplier == 0 for multiplier, _, _ in steps):
        return math.inf
    if accountant == "prv" and all(rate == 1 for _, rate, _ in steps):
        return gaussian_epsilon(math.sqrt(sum(count / multiplier**2 for multiplier, _, count in steps)), delta)
    bound = _rdp_epsilon(steps, delta)
    return bound if accountant == "rdp" or bound > _PRV_RANGE else min(bound, _prv_epsilon(steps, delta))


def release_epsilon(
    releases: Sequence[PrivateRelease], rounds: int, delta: float, accountant: Accountant = "prv"
) -> float:
    """Return the epsilon of everything released in as many equal rounds; Laplace's adds up."""
    if any(release.multiplier <= 0 for release in releases):
        return math.inf
    laplace = sum(r.steps * rounds / r.multiplier for r in releases if r.family == "laplace")
    history = [(r.multiplier, r.rate, r.steps * rounds) for r in releases if r.family == "gaussian"]
    return laplace + (composed_epsilon(history, delta, accountant) if history else 0.0)


class PrivacyLedger:
    """The steps of one client, their epsilon, and the budget they may not exceed.

    Args:
        owner: name of the defence, for messages.
        delta: at which epsilon is stated.
        accountant: for subsampled steps.
        budget: the largest epsilon; None for no limit.
    """

    def __init__(self, owner: str, delta: float, accountant: Accountant, budget: float | None) -> None:
        if not 0 < delta < 1:
            raise UsageError(f"{owner} needs 0 < delta < 1, got {delta:g}.", hint="Common is delta=1e-5.")
        if budget is not None and not budget > 0:
            raise UsageError(f"{owner} needs a budget above 0, got {budget:g}.", hint="Leave it out for no limit.")
        self.delta = delta
        self.accountant: Accountant = accountant
        self.budget = budget
        self._owner = owner
        self._history: tuple[Steps, ...] = ()
        self._known: tuple[tuple[Steps, ...], float] = ((), 0.0)

    @property
    def steps(self) -> int:
        """How many steps were recorded."""
        return sum(count for _, _, count in self._history)

    def spend(self, multiplier: float, rate: float) -> None:
        """Record one step, unless the budget does not allow it: then raise, and record nothing."""
        after = _merged([*self._history, (multiplier, rate, 1)])
        if self.budget is not None and self._exceeds(after, self.budget):
            raise BudgetSpentError(
                f"the privacy budget of {self._owner} is spent: {self.steps} steps cost epsilon "
                f"{self.epsilon():.4g} at delta = {self.delta:g}, one more would exceed budget = {self.budget:g}.",
                hint="Nothing was sent. Stop this client, raise `budget` or `sigma`, or lower `sample_rate`.",
            )
        self._history = after

    def epsilon(self) -> float:
        """Return the epsilon of all steps recorded so far."""
        if self._known[0] != self._history:
            self._known = (self._history, composed_epsilon(self._history, self.delta, self.accountant))
        return self._known[1]

    def describe(self) -> str:
        """Say in words how the epsilon was computed."""
        subsampled = [rate for _, rate, _ in self._history if rate < 1]
        if self.accountant == "prv" and not subsampled:
            method = "exact for the composed Gaussian mechanism"
        elif self.accountant == "prv" and self.epsilon() <= _PRV_RANGE:
            method = "by Opacus' PRV accountant"
        else:
            method = "by Opacus' RDP accountant"
        amplified = f"; assumes Poisson sampling at rate {subsampled[0]:g}" if subsampled else ""
        return f"accounted epsilon over {self.steps} steps at delta = {self.delta:g}, {method}, per sample{amplified}"

    def state_dict(self) -> dict[str, Tensor]:
        """Return the history as one tensor [entries, 3]; nothing before the first step."""
        return {"history": torch.tensor(self._history, dtype=torch.float64)} if self._history else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        history = state.get("history", torch.zeros(0, 3))
        if set(state) - {"history"} or history.ndim != 2 or history.shape[1] != 3:
            raise InputError(
                f"the state of {self._owner} is not a privacy ledger: it holds {sorted(state)}.",
                hint="Restore what state_dict() of the same defence returned.",
            )
        self._history = tuple((multiplier, rate, round(count)) for multiplier, rate, count in history.tolist())

    def _exceeds(self, history: tuple[Steps, ...], budget: float) -> bool:
        cheap = self.accountant == "prv" and any(rate < 1 for _, rate, _ in history)
        if cheap and composed_epsilon(history, self.delta, "rdp") <= budget:  # an upper bound, and much faster
            return False
        return composed_epsilon(history, self.delta, self.accountant) > budget


def _merged(history: Sequence[Steps]) -> tuple[Steps, ...]:
    """Add up equal steps; the order does not matter to composition."""
    counts: dict[tuple[float, float], int] = {}
    for multiplier, rate, count in history:
        counts[multiplier, rate] = counts.get((multiplier, rate), 0) + count
    return tuple((multiplier, rate, count) for (multiplier, rate), count in counts.items())


@lru_cache(maxsize=4096)
def _rdp_curve(multiplier: float, rate: float) -> Any:
    """Return the Renyi divergences of one step at Opacus' orders."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp

    return compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS)


def _rdp_epsilon(steps: Sequence[Steps], delta: float) -> float:
    require_opacus()
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import get_privacy_spent

    total = sum(count * _rdp_curve(multiplier, rate) for multiplier, rate, count in steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the optimal order is the smallest": still a valid bound
        epsilon, _ = get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=total, delta=delta)
    return max(0.0, float(epsilon))


def _prv_epsilon(steps: Sequence[Steps], delta: float) -> float:
    require_opacus()
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = list(steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # logarithms of zero at the edge of its grid
        return float(accountant.get_epsilon(delta))
