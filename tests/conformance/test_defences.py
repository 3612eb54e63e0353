"""Every registered defence keeps the contract (`fedseal.testing`). A new one is picked up by its name, and its row
says at which strengths it is tried."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.testing import DefenceCase, check_defence, contract

from .cases import CASES

OURS = [name for name in DEFENCES.names() if DEFENCES.entry(name).origin == "fedseal"]


@pytest.mark.parametrize("name", OURS)
def test_every_defence_has_a_row_and_a_paper(name: str):
    rows = [case for case in CASES if case.name == name]
    assert len(rows) == 1, f"add a row for {name!r} to CASES"
    assert rows[0].strengths or name in {"none", "pretrained"}, f"{name!r} needs a spec that does something"
    assert DEFENCES.entry(name).info.summary
    assert DEFENCES.entry(name).info.paper or name == "none"


test_every_defence_keeps_the_contract = contract(*CASES)


# The suite can fail: defences that break one rule each, and the check that must notice.


class Halving(Defence):
    """Keeps the contract."""

    info = Info("half of everything")

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: tensor * self.share for name, tensor in update.items()}

    def attacker_view(self) -> AttackerView:
        return AttackerView(self.name, {"share": self.share}, self._simulate)

    def _simulate(self, gradient: Tensors, observed: Tensors) -> Tensors:
        return {name: tensor * self.share for name, tensor in gradient.items()}


class Anonymous(Halving):
    def attacker_view(self) -> AttackerView:
        return AttackerView("somebody")


class Idle(Halving):
    def __init__(self, share: float = 1.0) -> None:
        super().__init__(share)


class Upcasting(Halving):
    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: tensor.double() * self.share for name, tensor in update.items()}


class Unseeded(Halving):
    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return {name: tensor + torch.randn_like(tensor) for name, tensor in update.items()}


class Secretive(Halving):
    def __init__(self, share: float = 0.5) -> None:
        super().__init__(share)
        self.rounds = 0

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        self.rounds += 1
        return {name: tensor * self.share**self.rounds for name, tensor in update.items()}


class Common(Halving):
    rounds: ClassVar[list[int]] = []

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        self.rounds.append(context.round)
        return {name: tensor * len(self.rounds) for name, tensor in update.items()}


class Detached(Halving):
    def _simulate(self, gradient: Tensors, observed: Tensors) -> Tensors:
        return {name: (tensor * self.share).detach() + 0 * tensor for name, tensor in gradient.items()}


class Misreporting(Halving):
    def state_dict(self) -> dict[str, Tensor]:
        return {"rounds": torch.ones(3)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass

    def report(self) -> CostReport:
        return CostReport()


def case_of(kind: type[Defence]) -> DefenceCase:
    spec = f"{__name__}:{kind.__name__}"
    return DefenceCase(spec, zero=f"{spec}:share=1", exact=(spec,))


def test_a_defence_that_is_registered_nowhere_can_be_held_to_the_contract():
    assert check_defence(case_of(Halving)) == {}


@pytest.mark.parametrize(
    ("kind", "failing"),
    [
        (Anonymous, "says_who_it_is"),
        (Idle, "does_something"),
        (Upcasting, "keeps_names_shapes_and_dtypes"),
        (Unseeded, "repeats_by_its_seed"),
        (Unseeded, "does_nothing_at_zero_strength"),
        (Secretive, "resumes_from_its_state"),
        (Common, "shares_no_state"),
        (Detached, "simulates_differentiably"),
        (Misreporting, "reports_its_state"),
    ],
)
def test_a_defence_that_breaks_a_rule_is_caught_by_its_check(kind: type[Defence], failing: str):
    with pytest.raises(AssertionError, match=failing):
        check_defence(case_of(kind))
