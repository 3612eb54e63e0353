"""Who knows a defence may act as if it did not: a view that misleads is found out on rehearsals and left aside."""

from __future__ import annotations

import pytest
import torch

from fedseal.attacks.matching.weighing import Reached, Weighed
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup, make_aware
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.defence import AttackerView, Defence
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence

SETUP = build_setup(Scenario(data="digits", model="lenet:init=wide-uniform", targets=1, attacker={"labels": "true"}))
ATTACK = "ig:tv=0.01,schedule=cosine"


class Misleading(Defence):
    """Sends the update as it is, and tells attackers that its last layer alone is true."""

    info = Info("tells attackers what is not so", name="misleading")

    def attacker_view(self) -> AttackerView:
        def simulate(gradient: Tensors, observed: Tensors) -> Tensors:
            names = list(gradient)
            return {name: t if name in names[-2:] else observed[name] for name, t in gradient.items()}

        return AttackerView(self.name, {}, simulate)


def attacked(defence: Defence, *, aware: bool, spec: str, iterations: int = 60) -> Reconstruction:
    seen = SETUP.observe(defence, 0, name="same").observation
    attack = ATTACKS.build(ATTACK)
    return attack.run(make_aware(seen, defence, spec) if aware else seen, Budget(iterations, 1), 3)


def test_a_view_that_misleads_is_left_aside():
    naive = attacked(Misleading(), aware=False, spec="none")
    aware = attacked(Misleading(), aware=True, spec="none")
    assert torch.equal(naive.images, aware.images)
    assert any("the defence is ignored in matching: on 4 rehearsals" in note for note in aware.notes)


@pytest.mark.parametrize(
    ("knowing", "ignoring", "ignored"),
    [
        (Reached(14.3, 0.42), Reached(14.1, 0.50), True),  # Refiner's prior on a LeNet: it named 6 of 64, not 36
        (Reached(14.1, 0.50), Reached(14.6, 0.42), False),
        (Reached(20.0, 0.42), Reached(14.1, 0.50), False),
        (Reached(14.1, 0.50), Reached(20.0, 0.42), True),
        (Reached(14.1, 0.50), Reached(14.2, 0.50), False),
        (Reached(14.1, 0.50), Reached(14.5, 0.50), True),
        (Reached(float("-inf"), -1.0), Reached(14.1, 0.50), True),
        (Reached(14.1, 0.50), Reached(float("-inf"), -1.0), False),
    ],
)
def test_of_two_ways_that_come_as_near_the_one_is_taken_that_points_better(
    knowing: Reached, ignoring: Reached, ignored: bool
):
    assert Weighed(knowing, ignoring).ignores is ignored


class Blurring(Defence):
    """Sends the update as it is, and tells attackers that private images are nearly flat."""

    info = Info("tells attackers that images are flat", name="blurring")

    def attacker_view(self) -> AttackerView:
        return AttackerView(self.name, {}, image_prior=lambda images: 100 * (images - 0.2).square().mean())


def test_a_prior_that_wins_decibels_by_a_blur_is_left_aside():
    """After thirty steps the search is below what a flat image scores, and points at its original all the same."""
    seen = SETUP.observe(Blurring(), 0, name="same").observation
    attack = ATTACKS.build("ig:tv=0,schedule=constant,lr=0.05")
    flat = attack.run(make_aware(seen, Blurring(), "none"), Budget(30, 1), 3)
    (note,) = (note for note in flat.notes if "in matching" in note)
    assert "the defence is ignored" in note
    assert torch.equal(flat.images, attack.run(seen, Budget(30, 1), 3).images)


@pytest.mark.slow
def test_a_view_that_helps_is_used():
    aware = attacked(build_defence("topk:ratio=0.8"), aware=True, spec="topk:ratio=0.8", iterations=400)
    assert any("the defence is simulated in matching" in note for note in aware.notes)


def test_a_view_that_says_nothing_is_not_weighed():
    assert build_defence("none").attacker_view().is_plain
    assert not build_defence("topk").attacker_view().is_plain
    assert not attacked(build_defence("none"), aware=True, spec="none").notes
