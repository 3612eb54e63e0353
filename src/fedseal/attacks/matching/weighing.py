"""Whether to use what one knows: an attacker who knows the defence tries beforehand if simulating it pays.

A view is a model of the defence, and a model can mislead: a ball that is wider than the distance it bounds, a law that
fits one network and not another. Who knows the defence may always act as if it did not, so it plays a few clients
itself, attacks them both ways with as many steps as its targets, looks at what comes out, and goes the better way. The
truth it looks at is its own public images'; nothing is learnt from a target. Labels are inferred through the defence
either way.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from fedseal.attacks.reading import image_count
from fedseal.core.attack import Budget
from fedseal.core.errors import FedsealError
from fedseal.core.identity import identity_of
from fedseal.core.observation import Observation, Update
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import derive_seed, generator
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import IMAGE_RANGE, hungarian
from fedseal.models.structure import multiply_adds

REHEARSALS = 4
"""Clients that are played."""
MOST_WORK = 10**12
"""Multiply-adds both ways may take; beyond, the view is trusted."""
MARGIN_DB = 0.2
"""By how much ignoring the defence must do better."""

_PASSES = 6
_KEPT = 16

Run = Callable[[Sequence[Observation], Budget, Sequence[int]], list[Reconstruction]]
"""Attacks observations with a budget and seeds."""


@dataclass(frozen=True)
class Weighed:
    """What came of trying both ways, in dB; None where it was not tried, and the view is used."""

    knowing: float | None = None
    ignoring: float | None = None

    @property
    def ignores(self) -> bool:
        """Whether the attacker acts as if it did not know the defence."""
        return self.knowing is not None and self.ignoring is not None and self.ignoring > self.knowing + MARGIN_DB

    @property
    def notes(self) -> tuple[str, ...]:
        """What is said of it."""
        if self.knowing is None or self.ignoring is None:
            return ()
        way = "ignored" if self.ignores else "simulated"
        return (
            f"the defence is {way} in matching: on {REHEARSALS} rehearsals with public images simulating it gives "
            f"{self.knowing:.1f} dB, ignoring it {self.ignoring:.1f} dB",
        )

    def applied(self, observation: Observation) -> Observation:
        """Return an observation as the attacker then uses it."""
        if not self.ignores:
            return observation
        return replace(observation, knowledge=replace(observation.knowledge, defence=None))


_TRIED: OrderedDict[str, Weighed] = OrderedDict()


def weigh(attack: object, run: Run, observation: Observation, iterations: int) -> Weighed:
    """Return how an attack should treat the defence of an observation and of all others of its model; tried once.

    Args:
        attack: whose options are part of what determines the outcome.
        run: what it does with observations.
        observation: any of them.
        iterations: the attack is going to take.
    """
    knowledge = observation.knowledge
    if not _can_try(observation, iterations):
        return Weighed()
    assert knowledge.rehearse is not None
    assert knowledge.auxiliary is not None
    assert knowledge.defence is not None
    key = identity_of(
        attack=attack,
        weights=dict(observation.model.state_dict()),
        rehearsal=knowledge.rehearse.identity,
        view=knowledge.defence.describe(),
        images=image_count(observation),
        public=knowledge.auxiliary.images,
        iterations=iterations,
    )
    if key not in _TRIED:
        _TRIED[key] = _try(run, observation, iterations)
        while len(_TRIED) > _KEPT:
            _TRIED.popitem(last=False)
    return _TRIED[key]


def _can_try(observation: Observation, iterations: int) -> bool:
    knowledge = observation.knowledge
    view, public = knowledge.defence, knowledge.auxiliary
    if view is None or view.is_plain or view.personal or knowledge.rehearse is None or public is None:
        return False
    images = image_count(observation)
    if len(public) < images:
        return False
    own = copy.deepcopy(observation.model).eval()
    work = multiply_adds(own, (images, *knowledge.input_shape)) * iterations
    return 2 * REHEARSALS * _PASSES * work <= MOST_WORK


def _try(run: Run, observation: Observation, iterations: int) -> Weighed:
    """Attack rehearsed updates knowing and ignoring the defence; a way that fails counts as hopeless."""
    knowledge = observation.knowledge
    public, rehearse = knowledge.auxiliary, knowledge.rehearse
    assert public is not None
    assert rehearse is not None
    source = generator(0, "weighing")
    count = image_count(observation)
    chosen = torch.stack([torch.randperm(len(public), generator=source)[:count] for _ in range(REHEARSALS)])
    chosen = chosen.to(public.labels.device)
    images, labels = public.images[chosen], public.labels[chosen]
    updates = [
        {name: part[place] for name, part in chunk.items()}
        for chunk in rehearse(observation.model, images, labels, derive_seed(0, "weighing"))
        for place in range(len(next(iter(chunk.values()))))
    ]
    shadows = [
        replace(
            observation,
            update=Update(update, observation.update.kind),
            knowledge=replace(knowledge, labels=own, label_rule="true", rehearse=None, bn_statistics=None),
        )
        for update, own in zip(updates, labels, strict=True)
    ]

    def reached(cases: Sequence[Observation]) -> float:
        try:
            found = run(cases, Budget(iterations, 1), list(range(len(cases))))
        except FedsealError:
            return float("-inf")
        scores = []
        for truth, one in zip(images, found, strict=True):
            matched = one.images[hungarian(truth, one.images)]
            scores.append(float(psnr(truth, matched.to(truth), data_range=IMAGE_RANGE).mean()))
        return fmean(scores)

    ignorant = [replace(case, knowledge=replace(case.knowledge, defence=None)) for case in shadows]
    return Weighed(reached(shadows), reached(ignorant))
