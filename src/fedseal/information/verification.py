"""Claimed against actual: a defence's own epsilon beside what its outputs prove.

A mechanism that leaks more than it claims is caught, a no-op with a strong name first of all; one that passes is not
thereby proven private: a lower bound is what these canaries found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedseal.core.defence import CostReport, Defence
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.privacy import PrivacyUnit, PrivateRelease
from fedseal.defences.accounting import release_epsilon
from fedseal.information.canaries import one_run_scores, repeated_scores
from fedseal.information.epsilon_bounds import LowerBound, one_run, repeated

_LEAST_RUNS = 100


@dataclass(frozen=True)
class Verification:
    """A claim beside what contradicts it.

    Attributes:
        defence: its name.
        unit: whose presence it hides; as claimed, or a whole update if nothing is claimed.
        claimed_epsilon: of one round, at `delta`; None if it claims none.
        claimed_mu: of one round, where it claims to be a Gaussian mechanism without sampling.
        delta: at which epsilons are stated.
        confidence: of the lower bounds, each.
        one_run: from many canaries in one round; None where a whole update is the unit, as it has one canary only.
        repeated: from independent rounds.
        runs: rounds played.
    """

    defence: str
    unit: PrivacyUnit
    claimed_epsilon: float | None
    claimed_mu: float | None
    delta: float
    confidence: float
    one_run: LowerBound | None
    repeated: LowerBound
    runs: int

    @property
    def proven_epsilon(self) -> float:
        """The largest epsilon that the outputs prove."""
        return max(self.repeated.epsilon, 0.0 if self.one_run is None else self.one_run.epsilon)

    @property
    def refuted(self) -> bool:
        """Whether the outputs contradict the claim."""
        over_epsilon = self.claimed_epsilon is not None and self.proven_epsilon > self.claimed_epsilon
        over_mu = self.claimed_mu is not None and (self.repeated.mu or 0.0) > self.claimed_mu
        return over_epsilon or over_mu

    def describe(self) -> str:
        """Return claim, evidence and conclusion in words."""
        claim = "claims no epsilon"
        if self.claimed_epsilon is not None:
            claim = f"claims epsilon {self.claimed_epsilon:.4g} at delta {self.delta:g} for one round"
        if self.claimed_mu is not None:
            claim += f" (a Gaussian mechanism with mu = {self.claimed_mu:.4g})"
        what = "a client's whole update" if self.unit == "update" else "one sample"
        found = f"its outputs prove epsilon >= {self.proven_epsilon:.4g} and mu >= {self.repeated.mu or 0:.4g}"
        return (
            f"{self.defence} {claim}, about {what}.\n"
            f"In {self.runs} rounds with canaries {found}, each at {self.confidence:.0%} confidence.\n"
            f"{self._conclusion()}"
        )

    def _conclusion(self) -> str:
        if self.claimed_epsilon is None:
            return "There is no claim to check."
        if self.refuted:
            return "REFUTED: it leaks more than it claims."
        return "Consistent with the claim. That is no proof: other canaries may find more."

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {
            "defence": self.defence,
            "unit": self.unit,
            "claimed_epsilon": self.claimed_epsilon,
            "claimed_mu": self.claimed_mu,
            "delta": self.delta,
            "confidence": self.confidence,
            "proven_epsilon": self.proven_epsilon,
            "proven_mu": self.repeated.mu,
            "one_run_epsilon": None if self.one_run is None else self.one_run.epsilon,
            "runs": self.runs,
            "refuted": self.refuted,
        }


def verify_dp(
    make: Callable[[], Defence],
    *,
    runs: int = 4000,
    canaries: int = 1000,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
) -> Verification:
    """Attack a defence's implementation with canaries and set what they prove beside what it claims.

    Args:
        make: builds a fresh instance.
        runs: independent rounds, with and without a canary.
        canaries: in the one round that holds many.
        delta: at which epsilons are stated.
        confidence: of each lower bound.
        seed: of coins and noise.
    """
    if runs < _LEAST_RUNS or canaries < _LEAST_RUNS:
        raise InputError(
            f"{runs} runs and {canaries} canaries are too few to prove anything.", hint=f"Use at least {_LEAST_RUNS}."
        )
    played = make()
    _refuse_joint(played)
    repeated_scores(lambda: played, "sample" if played.needs_sample_grads else "update", 1, seed)
    releases = played.releases()
    unit: PrivacyUnit = releases[0].unit if releases else ("sample" if played.needs_sample_grads else "update")
    rate = min((release.rate for release in releases), default=1.0)
    found = repeated_scores(make, unit, runs, seed, rate=rate)
    many = one_run_scores(make, canaries, seed, rate=rate) if unit == "sample" else None
    return Verification(
        played.name,
        unit,
        _claimed_epsilon(releases, played.report(), delta),
        _claimed_mu(releases),
        delta,
        confidence,
        None if many is None else one_run(many.present, many.absent, delta, confidence),
        repeated(found.present, found.absent, delta, confidence),
        runs + (many is not None),
    )


def _refuse_joint(defence: Defence) -> None:
    if defence.stage == "aggregate" or defence.uses("broadcast"):
        raise CapabilityError(
            f"{defence.name} is a protocol between several parties; canaries test what one client sends by itself.",
            hint="Verify the defence of the update that is used with it.",
        )


def _claimed_epsilon(releases: tuple[PrivateRelease, ...], report: CostReport, delta: float) -> float | None:
    """Return the epsilon of one round: by the mechanism that is declared, or else as reported."""
    if not releases:
        return report.epsilon_accounted
    epsilon = release_epsilon(releases, 1, delta)
    return epsilon if math.isfinite(epsilon) else None


def _claimed_mu(releases: tuple[PrivateRelease, ...]) -> float | None:
    if not releases or any(release.family != "gaussian" or release.rate < 1 for release in releases):
        return None
    return math.sqrt(sum(release.steps / release.multiplier**2 for release in releases))
