"""The site's seal: its policy applied to a request before an app runs, and to the app's answer before it leaves.

What has left is counted in the site's ledger, by the site itself, before it leaves: updates with what they released
and the defence's state, and answers of any kind. Randomness comes from the operating system.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.core.errors import FedsealError
from fedseal.core.observation import Update
from fedseal.core.privacy import PrivateRelease
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.accounting import BudgetSpentError
from fedseal.defences.pipeline import build_defence
from fedseal.federation.posthoc import seal_update
from fedseal.ledger import Account, Budget, SiteLedger, Turn, slot_of
from fedseal.site.admission import admitted, check_risk, check_rules
from fedseal.site.leaving import change_of, leaving_metrics
from fedseal.site.looking import alarm_of, check_detector
from fedseal.site.policy import Policy
from fedseal.site.refusal import RefusedError

_LOG = logging.getLogger("fedseal.site")
_ANSWERS = "answers"
EPSILON = "epsilon-accounted"
"""Name of the epsilon among the costs, as `defend` has it."""


@dataclass(frozen=True)
class SealedAnswer:
    """What may leave of an app's answer.

    Attributes:
        change: sealed weight change; parameters that may not leave are not in it.
        metrics: numbers, clamped and rounded.
        costs: of the seal itself: the epsilon of all updates so far, where there is one.
        unit: whose presence that epsilon is about.
        number: how many updates of this federation and data set have left, this one included.
    """

    change: dict[str, Tensor]
    metrics: dict[str, int | float]
    costs: dict[str, float]
    unit: str | None
    number: int


class SiteSeal:
    """A policy at work for one federation and data set.

    Args:
        policy: the site's.
        ledger: what has left so far.
        source: of the defence's randomness.
    """

    def __init__(
        self, policy: Policy, ledger: SiteLedger, source: Callable[[], torch.Generator] = lambda: generator(None)
    ) -> None:
        self.policy = policy
        self._ledger = ledger
        self._source = source
        self._updates = Account(policy.federation, policy.site, policy.data)
        self._answers = Account(policy.federation, f"{policy.site}/{_ANSWERS}", policy.data)
        limit = policy.budget.epsilon
        self._budget = None if limit is None else Budget(limit, policy.budget.delta)
        check_rules(policy.seal)
        check_detector(policy.detector)
        self._check(policy.seal.default)

    def defence_for(self, asked: object) -> str:
        """Return the spec that seals a run which asks for `asked`, or refuse it."""
        try:
            spec = admitted(self.policy.seal, asked)
            self._check(spec)
        except FedsealError as error:
            raise RefusedError(f"the run's defence is refused: {error}") from error
        return spec

    def admit(self, kind: str, state: Tensors | None, spec: str) -> None:
        """Refuse a request before any app runs: of a kind that is not answered, past the budget, or with a weapon.

        Args:
            kind: of the request.
            state: the model in it, None if it brings none.
            spec: what the update would be sealed with.
        """
        if kind not in self.policy.leave.messages:
            raise RefusedError(f"the site does not answer requests to {kind}.")
        self._check_answers()
        if kind == "train":
            with self._turn("admission") as turn:
                self._check_rounds(turn)
                _halting(turn.check, _releases_of(spec))
        alarm = None if state is None else alarm_of(self.policy.detector, state)
        if alarm is not None:
            _LOG.warning("a received model is suspicious: %s", alarm)
            if self.policy.detector.on_alarm == "refuse":
                raise RefusedError("the model was refused as suspicious.", detail=alarm)

    def count(self, kind: str) -> None:
        """Note that an answer is about to leave, whatever it says."""
        with self._ledger.turn(self._answers, kind) as turn:
            turn.commit((), {}, facts={"answer": kind})

    def update(self, before: Tensors, after: Tensors, metrics: Mapping[str, object], spec: str) -> SealedAnswer:
        """Return what may leave of an answer to a training request, or refuse it.

        Args:
            before: the state the server sent.
            after: what the app answers with.
            metrics: what it says beside.
            spec: of the defence.
        """
        change = change_of(self.policy.leave, before, after)
        numbers = leaving_metrics(self.policy.leave, metrics)
        with self._turn(slot_of(spec, change)) as turn:
            self._check_rounds(turn)
            defence = build_defence(spec)
            if turn.state:
                defence.load_state_dict(turn.state)
            sealed = seal_update(
                Update(change, "delta"),
                defence,
                self._source(),
                before={name: before[name] for name in change},
                round_number=turn.number,
                client=self.policy.data,
                learning_rate=1.0,
            )
            _halting(turn.commit, defence.releases(), defence.state_dict(), facts={"defence": spec})
            spent = turn.epsilon(self.policy.budget.delta)
            known = bool(defence.releases()) and math.isfinite(spent.value)
            costs, unit = ({EPSILON: spent.value}, spent.unit) if known else ({}, None)
            return SealedAnswer(dict(sealed.update.tensors), numbers, costs, unit, turn.number)

    def numbers(self, metrics: Mapping[str, object]) -> dict[str, int | float]:
        """Return what may leave of an answer that brings numbers only."""
        return leaving_metrics(self.policy.leave, metrics)

    def _turn(self, slot: str):  # type: ignore[no-untyped-def]
        return self._ledger.turn(self._updates, slot, budget=self._budget)

    def _check(self, spec: str) -> None:
        if self.policy.risk is not None:
            check_risk(self.policy.risk, spec)
        if self._budget is not None and not _releases_of(spec):
            raise RefusedError(f"the site has a budget of epsilon, and {spec} claims none that could be counted.")

    def _check_answers(self) -> None:
        limit = self.policy.budget.replies
        if limit is None:
            return
        with self._ledger.turn(self._answers, _ANSWERS) as turn:
            if turn.number >= limit:
                raise RefusedError(f"the site's budget of {limit} answers is spent.")

    def _check_rounds(self, turn: Turn) -> None:
        limit = self.policy.budget.rounds
        if limit is not None and turn.number >= limit:
            raise RefusedError(f"the site's budget of {limit} rounds is spent.")


def _halting(spend: Callable[..., object], *values: object, **further: object) -> None:
    """Spend, or refuse in the words of the ledger, in which nothing is the app's."""
    try:
        spend(*values, **further)
    except BudgetSpentError as error:
        raise RefusedError(error.message) from error


def _releases_of(spec: str) -> tuple[PrivateRelease, ...]:
    """Return what an update under a defence releases; its claim does not depend on the data."""
    defence, zeros = build_defence(spec), {"w": torch.zeros(8, 8)}
    seal_update(
        Update(zeros, "delta"), defence, generator(0), before=zeros, round_number=0, client="probe", learning_rate=1.0
    )
    return defence.releases()
