"""What releases add up to: an account's page, its epsilon, and whether one more round would pass a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedseal.core.errors import StorageError, UsageError
from fedseal.core.privacy import PrivacyUnit, PrivateRelease
from fedseal.defences.accounting import BudgetSpentError, release_epsilon

Spent = PrivateRelease
"""Releases of one kind, counted: `steps` of them, over all rounds so far."""


@dataclass(frozen=True)
class Budget:
    """The most an account may spend.

    Attributes:
        epsilon: over everything ever released.
        delta: at which epsilon is stated.
    """

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 < self.delta < 1:
            raise UsageError(
                f"a privacy budget needs epsilon > 0 and 0 < delta < 1, got {self.epsilon} and {self.delta}.",
                hint="Common is epsilon=8, delta=1e-5.",
            )


@dataclass(frozen=True)
class Epsilon:
    """What is guaranteed after everything released so far.

    Attributes:
        value: infinite if anything was released without a guarantee; 0 if nothing was released.
        delta: at which it is stated.
        unit: whose presence is hidden: a client's whole update of a round, or one sample.
    """

    value: float
    delta: float
    unit: PrivacyUnit


@dataclass(frozen=True)
class Page:
    """Where an account stands.

    Attributes:
        number: updates released so far, counted by the client itself.
        spent: private releases among them, equal ones added up.
        unaccounted: updates that were released without any guarantee.
    """

    number: int = 0
    spent: tuple[Spent, ...] = ()
    unaccounted: int = 0

    def after(self, releases: Sequence[PrivateRelease]) -> Page:
        """Return the page after one more update; without private releases it carries no guarantee."""
        return Page(self.number + 1, _merged([*self.spent, *releases]), self.unaccounted + (not releases))

    def epsilon(self, delta: float = 1e-5, accountant: str = "prv") -> Epsilon:
        """Return what all releases cost together.

        Where releases of whole updates and of samples meet, the unit is the sample: one that is exchanged moves a
        clipped update by twice the bound that its absence does, hence half the multiplier.
        """
        mixed = any(one.unit == "sample" for one in self.spent)
        same = [one if one.unit == "sample" or not mixed else _per_sample(one) for one in self.spent]
        unit: PrivacyUnit = "sample" if mixed else "update"
        if self.unaccounted:
            return Epsilon(math.inf, delta, unit)
        value = release_epsilon(same, 1, delta, "rdp" if accountant == "rdp" else "prv") if same else 0.0
        return Epsilon(value, delta, unit)

    def refuse_beyond(self, budget: Budget, owner: str, before: Page) -> None:
        """Raise if this page lies beyond a budget; `before` is where the account stands without it."""
        if self.unaccounted:
            raise BudgetSpentError(
                f"{owner} has a privacy budget of epsilon = {budget.epsilon:g}, and "
                + ("an update was released" if before.unaccounted else "this update would be released")
                + " without any guarantee.",
                hint="Nothing was sent. Use a private defence such as gaussian or dp-sgd, or take the budget away.",
            )
        sampled = any(one.rate < 1 for one in self.spent)
        if sampled and self.epsilon(budget.delta, "rdp").value <= budget.epsilon:  # cheap, and bounds the tight one
            return
        if self.epsilon(budget.delta).value > budget.epsilon:
            raise BudgetSpentError(
                f"the privacy budget of {owner} is spent: {before.number} releases cost epsilon "
                f"{before.epsilon(budget.delta).value:.4g} at delta = {budget.delta:g}, one more would exceed "
                f"{budget.epsilon:g}.",
                hint="Nothing was sent. Stop this client, or agree on another budget with the site.",
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the page as JSON has it."""
        return {
            "number": self.number,
            "spent": [asdict(one) for one in self.spent],
            "unaccounted": self.unaccounted,
        }

    @staticmethod
    def from_dict(value: Mapping[str, Any]) -> Page:
        """Read what `as_dict` returned."""
        try:
            spent = tuple(PrivateRelease(**one) for one in value["spent"])
            return Page(int(value["number"]), spent, int(value["unaccounted"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError("an account's page cannot be read.", hint="Run `fedseal ledger verify`.") from error


def _merged(spent: Sequence[Spent]) -> tuple[Spent, ...]:
    """Add up equal releases; their order does not matter to composition."""
    counts: dict[Spent, int] = {}
    for one in spent:
        alone = replace(one, steps=1)
        counts[alone] = counts.get(alone, 0) + one.steps
    return tuple(replace(one, steps=count) for one, count in counts.items())


def _per_sample(release: Spent) -> Spent:
    return release if release.unit == "sample" else replace(release, unit="sample", multiplier=release.multiplier / 2)
