"""What holds of every attack, whoever wrote it.

    from fedseal.testing import ATTACK_CHECKS, AttackCase, Home

    @pytest.mark.parametrize("check", ATTACK_CHECKS)
    def test_my_attack_keeps_the_contract(check):
        check(AttackCase("mine", Home(model="lenet", budget=Budget(iterations=50))))

An attack is tried on its home ground: a small model, data and budget it is made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from fedseal.core.attack import ATTACKS, Attack, Budget
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import generator
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.federation.rehearsal import rehearsal_of
from fedseal.models.registry import build_model
from fedseal.testing.checks import Check, run_checks

_SEED = 7


@dataclass(frozen=True)
class Home:
    """The ground an attack is made for.

    Attributes:
        model: spec of a registered model.
        shape: C, H, W of its images.
        classes: number of them.
        batch_size: images behind an update.
        budget: enough to succeed, as small as possible.
    """

    model: str = "lenet"
    shape: tuple[int, int, int] = (1, 8, 8)
    classes: int = 10
    batch_size: int = 1
    budget: Budget = field(default_factory=lambda: Budget(iterations=5))


@dataclass(frozen=True)
class AttackCase:
    """An attack by its spec, and its home ground."""

    spec: str
    home: Home = field(default_factory=Home)

    def __str__(self) -> str:
        return self.spec

    def attack(self) -> Attack:
        """Build the attack anew."""
        return ATTACKS.build(self.spec)

    @cached_property
    def model(self) -> nn.Module:
        """The model every target of the case was computed on."""
        model = build_model(self.home.model, input_shape=self.home.shape, num_classes=self.home.classes, seed=_SEED)
        return set_mode(model, RoundConfig())

    def observation(self, target: int) -> tuple[Observation, Batch]:
        """Play the attacked round on target number `target`; return what the attack sees, and the truth."""
        home = self.home
        batch = _batch(home, target)
        knowledge = Knowledge(
            home.shape,
            home.classes,
            label_rule="true",
            labels=batch.labels,
            batch_size=home.batch_size,
            clients=1,
            local_steps=1,
            learning_rate=RoundConfig().learning_rate,
            normalisation=RoundConfig().normalisation,
            auxiliary=_batch(home, -1, 64),
        )
        knowledge = replace(knowledge, rehearse=rehearsal_of(knowledge, "gradient"))

        def ask(models: Sequence[nn.Module]) -> Observation:
            (model,) = models
            sent = set_mode(model, RoundConfig())
            result = client_round(sent, [batch], RoundConfig(), Defence(), generator(_SEED, "client", target))
            return Observation(sent, result.update, knowledge)

        return self.attack().provoke(self.model, knowledge, ask, target), batch

    def run(self, targets: tuple[int, ...], seeds: tuple[int, ...]) -> list[Reconstruction]:
        """Attack some targets together."""
        observations = [self.observation(target)[0] for target in targets]
        return self.attack().run_many(observations, self.home.budget, list(seeds))


def _batch(home: Home, number: int, count: int | None = None) -> Batch:
    """Return smooth random images with distinct labels as far as there are classes."""
    count = count or home.batch_size
    source = generator(_SEED, "data", number)
    coarse = torch.rand(count, home.shape[0], 4, 4, generator=source)
    images = nn.functional.interpolate(coarse, size=home.shape[1:], mode="bicubic", align_corners=False).clamp(0, 1)
    order = torch.randperm(home.classes, generator=source)
    return Batch(images, order.repeat(-(-count // home.classes))[:count])


def shapes_and_range(case: AttackCase) -> str | None:
    """Demand one finite image in [0, 1] and one label of a known class for every image behind the update."""
    observation, truth = case.observation(0)
    (found,) = case.attack().run_many([observation], case.home.budget, [1])
    assert found.images.shape == truth.images.shape, f"images are {list(found.images.shape)}"
    assert found.labels.shape == truth.labels.shape, f"labels are {list(found.labels.shape)}"
    assert bool(torch.isfinite(found.images).all()), "images are not finite"
    assert torch.equal(found.images, found.images.clamp(0, 1)), "images leave [0, 1]"
    assert bool(((found.labels >= 0) & (found.labels < case.home.classes)).all()), "labels name no class"
    return None


def repeatable(case: AttackCase) -> str | None:
    """Demand the same bits of the same seed."""
    first, second = case.run((0,), (3,))[0], case.run((0,), (3,))[0]
    assert _same(first, second), "two runs with one seed differ"
    return None


def alone_is_together(case: AttackCase) -> str | None:
    """Demand that a result does not depend, to the bit, on what is attacked beside it."""
    together = case.run((0, 1, 2), (5, 6, 7))
    for place, seed in enumerate((5, 6, 7)):
        assert _same(case.run((place,), (seed,))[0], together[place]), f"target {place} differs beside others"
    return None


def _same(one: Reconstruction, other: Reconstruction) -> bool:
    tensors = torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)
    return tensors and one.objective == other.objective


ATTACK_CHECKS: tuple[Check[AttackCase], ...] = (shapes_and_range, repeatable, alone_is_together)
"""Every row of the attacks' contract."""


def check_attack(spec: str, *, home: Home | None = None) -> dict[str, str]:
    """Hold one attack to the whole contract; return the checks that do not apply, with reasons."""
    return run_checks(AttackCase(spec, home or Home()), ATTACK_CHECKS)
