"""A client's turn: what it may know of its past, and the one moment at which a release is recorded."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from fedseal.core.errors import UsageError
from fedseal.core.hashing import hash_json
from fedseal.core.privacy import PrivateRelease
from fedseal.core.tensors import Tensors
from fedseal.ledger.spending import Budget, Epsilon, Page

Save: TypeAlias = Callable[[Page, Tensors, Mapping[str, Any], Sequence[PrivateRelease]], None]
"""Writes the page after a release, the state it leaves, what is known of it, and the release; returns once all of it
is safe."""


@dataclass(frozen=True)
class Account:
    """Whose data are spent.

    Attributes:
        federation: in which they take part; budgets of different federations are apart.
        client: the site's own name for the client, which no server hands out.
        dataset: what is trained on; two data sets of one client do not share a budget.
    """

    federation: str = "default"
    client: str = "site"
    dataset: str = "default"

    def __post_init__(self) -> None:
        for name, value in (("federation", self.federation), ("client", self.client), ("dataset", self.dataset)):
            if not value or len(value) > 200 or not value.isprintable():
                raise UsageError(
                    f"an account's {name} cannot be {value[:80]!r}.", hint="Use 1 to 200 printable letters."
                )

    def __str__(self) -> str:
        return f"{self.federation}/{self.client}/{self.dataset}"


class Turn:
    """One round at an account.

    Args:
        owner: the account in words, for messages.
        page: where it stands.
        state: what the defence left there.
        seed: what this client prepares its data with in every round.
        budget: the most it may spend; None for no limit.
        save: see `Save`.
    """

    def __init__(
        self, owner: str, page: Page, state: Mapping[str, Tensor], seed: int, budget: Budget | None, save: Save
    ) -> None:
        self.state = dict(state)
        self.seed = seed
        self.budget = budget
        self.committed = False
        self._owner = owner
        self._page = page
        self._save = save
        self._expected: tuple[PrivateRelease, ...] = ()

    @property
    def number(self) -> int:
        """How many updates this client has released before, or with this turn's once it is committed."""
        return self._page.number

    @property
    def page(self) -> Page:
        """Where the account stands."""
        return self._page

    def epsilon(self, delta: float | None = None) -> Epsilon:
        """Return what everything released so far costs."""
        return self._page.epsilon(delta or (self.budget.delta if self.budget else 1e-5))

    def expect(self, releases: Sequence[PrivateRelease]) -> None:
        """Note what the last round with the same defence released: what the next will, if it says nothing itself."""
        self._expected = tuple(releases)

    def check(self, releases: Sequence[PrivateRelease] = ()) -> None:
        """Raise `BudgetSpentError` before a round whose releases would pass the budget, or if that is passed already.

        Args:
            releases: what the defence says of itself before the round; where it can say nothing, the last round counts.
        """
        if self.budget is None:
            return
        coming = tuple(releases) or self._expected
        if self._page.number:
            self._page.refuse_beyond(self.budget, self._owner, self._page)
        if coming:
            self._page.after(coming).refuse_beyond(self.budget, self._owner, self._page)

    def commit(
        self, releases: Sequence[PrivateRelease], state: Tensors, *, facts: Mapping[str, Any] | None = None
    ) -> Page:
        """Record a release before it leaves, once, and return where the account stands then.

        Args:
            releases: `defence.releases()` of the round; empty for an update without any guarantee.
            state: `defence.state_dict()` after it.
            facts: what else to write down of it: plain values only, nothing private.
        """
        if self.committed:
            raise RuntimeError("a turn is committed once")
        after = self._page.after(releases)
        if self.budget is not None:
            after.refuse_beyond(self.budget, self._owner, self._page)
        self._save(after, state, dict(facts or {}), releases)
        self._page, self.state, self.committed = after, dict(state), True
        return after


def memory_turn(
    owner: str,
    page: Page,
    state: Mapping[str, Tensor],
    save: Callable[[Page, Tensors], None],
    *,
    seed: int | None = None,
    budget: Budget | None = None,
) -> Turn:
    """Return a turn that is kept by the caller, for as long as that lives: where no ledger is configured."""
    drawn = secrets.randbits(63) if seed is None else seed
    return Turn(owner, page, state, drawn, budget, lambda after, left, facts, releases: save(after, left))


def slot_of(spec: str, weights: Tensors) -> str:
    """Return the name under which a defence's state is kept: its spec, and the structure of the model it is for."""
    structure = {name: list(tensor.shape) for name, tensor in weights.items()}  # strategies change precisions
    return f"{spec}@{hash_json(structure)[:16]}"
