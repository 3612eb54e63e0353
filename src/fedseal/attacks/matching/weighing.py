"""Whether to use what one knows: an attacker who knows the defence tries beforehand if simulating it pays.

A view is a model of the defence, and a model can mislead: a ball that is wider than the distance it bounds, a law that
fits one network and not another. Who knows the defence may always act as if it did not, so it plays a few clients
itself, attacks them both ways with as many steps as its targets, or as many as it can afford, looks at what comes out,
and goes the better way. The truth it looks at is its own public images', or that of images it made up; nothing is
learnt from a target. Labels are inferred through the defence either way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from fedseal.attacks.reading import image_count
from fedseal.attacks.shadow.imagined import imagined
from fedseal.core.attack import Budget
from fedseal.core.batch import Batch
from fedseal.core.errors import FedsealError
from fedseal.core.identity import identity_of
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.core.observation import Observation, Update
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import derive_seed, generator
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import IMAGE_RANGE, hungarian
from fedseal.metrics.pixels import correlation
from fedseal.models.structure import multiply_adds
from fedseal.preparation import remembered

REHEARSALS = 4
"""Clients that are played."""
MOST_WORK = 10**12
"""Multiply-adds both ways may take; beyond, fewer steps are tried."""
FEWEST_STEPS = 30
"""Steps below which nothing would be learnt, and the view is trusted."""
MARGIN_DB = 0.2
"""By how much ignoring the defence must do better."""
NEAR_DB = 1.0
"""Closer than this, the way is taken that points better: a blur wins decibels and singles nobody out."""
MARGIN_LIKENESS = 0.02
"""By how much correlations must differ to point better."""

_PASSES = 6

Run = Callable[[Sequence[Observation], Budget, Sequence[int]], list[Reconstruction]]
"""Attacks observations with a budget and seeds."""


@dataclass(frozen=True)
class Reached:
    """What one way comes to on rehearsals.

    Attributes:
        db: mean PSNR, of each image no less than a guess has: below that, decibels reward a blur.
        likeness: mean correlation with the originals, by which an answer is held beside a line-up.
    """

    db: float
    likeness: float


@dataclass(frozen=True)
class Weighed:
    """What came of trying both ways; None where it was not tried, and the view is used.

    Attributes:
        knowing: simulating the defence.
        ignoring: as one who does not know it.
        images: which were rehearsed with, `public` or `made-up` ones.
    """

    knowing: Reached | None = None
    ignoring: Reached | None = None
    images: str = "public"

    @property
    def ignores(self) -> bool:
        """Whether the attacker acts as if it did not know the defence."""
        if self.knowing is None or self.ignoring is None:
            return False
        gain = self.ignoring.db - self.knowing.db
        turn = self.ignoring.likeness - self.knowing.likeness
        if abs(gain) <= NEAR_DB and abs(turn) > MARGIN_LIKENESS:
            return turn > 0
        return gain > MARGIN_DB

    @property
    def notes(self) -> tuple[str, ...]:
        """What is said of it."""
        if self.knowing is None or self.ignoring is None:
            return ()
        way = "ignored" if self.ignores else "simulated"
        return (
            f"the defence is {way} in matching: on {REHEARSALS} rehearsals with {self.images} images simulating it "
            f"gives {self.knowing.db:.1f} dB (no less than a guess) and a correlation of {self.knowing.likeness:.2f}, "
            f"ignoring it {self.ignoring.db:.1f} dB and {self.ignoring.likeness:.2f}",
        )

    def applied(self, observation: Observation) -> Observation:
        """Return an observation as the attacker then uses it."""
        if not self.ignores:
            return observation
        return replace(observation, knowledge=replace(observation.knowledge, defence=None))


def weigh(attack: object, run: Run, observation: Observation, iterations: int) -> Weighed:
    """Return how an attack should treat the defence of an observation and of all others of its model; tried once.

    Args:
        attack: whose options are part of what determines the outcome.
        run: what it does with observations.
        observation: any of them.
        iterations: the attack is going to take.
    """
    knowledge = observation.knowledge
    steps = _affordable(observation, iterations)
    if not steps:
        return Weighed()
    assert knowledge.rehearse is not None
    assert knowledge.defence is not None
    key = identity_of(
        attack=attack,
        weights=dict(observation.model.state_dict()),
        rehearsal=knowledge.rehearse.identity,
        view=knowledge.defence.describe(),
        images=image_count(observation),
        public=None if knowledge.auxiliary is None else knowledge.auxiliary.images,
        iterations=steps,
    )
    return remembered("weighing", key, lambda: _try(run, observation, steps))


def _affordable(observation: Observation, iterations: int) -> int:
    """Return how many steps can be tried, at most those asked for; 0 where nothing is to be learnt."""
    knowledge = observation.knowledge
    view, rehearse = knowledge.defence, knowledge.rehearse
    if view is None or view.is_plain or view.personal or rehearse is None:
        return 0
    if rehearse.identity == rehearse.plain().identity:
        return 0  # it does not play the defence, so it cannot tell what knowing it is worth
    if knowledge.loss != CROSS_ENTROPY and knowledge.auxiliary is None:
        return 0  # labels can be made up for classes only
    own = copy.deepcopy(observation.model).eval()
    step = 2 * REHEARSALS * _PASSES * multiply_adds(own, (image_count(observation), *knowledge.image_shape))
    steps = min(iterations, MOST_WORK // max(1, step))
    return steps if steps >= min(iterations, FEWEST_STEPS) else 0


def _own_images(observation: Observation) -> tuple[Batch, str]:
    """Return images to rehearse with, as many as an update needs, and what they are: public, or else made up."""
    knowledge, count = observation.knowledge, image_count(observation)
    if knowledge.auxiliary is not None and len(knowledge.auxiliary) >= count:
        return knowledge.auxiliary, "public"
    like = next(iter(observation.parameters.values()))
    made = imagined(knowledge.image_shape, knowledge.num_classes, REHEARSALS * count, 0)
    return made.to(like.device, like.dtype), "made-up"


def _try(run: Run, observation: Observation, iterations: int) -> Weighed:
    """Attack rehearsed updates knowing and ignoring the defence; a way that fails counts as hopeless."""
    knowledge, rehearse = observation.knowledge, observation.knowledge.rehearse
    assert rehearse is not None
    own_images, kind = _own_images(observation)
    source = generator(0, "weighing")
    count = image_count(observation)
    chosen = torch.stack([torch.randperm(len(own_images), generator=source)[:count] for _ in range(REHEARSALS)])
    chosen = chosen.to(own_images.labels.device)
    images, labels = own_images.images[chosen], own_images.labels[chosen]
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

    guess = own_images.images.mean(0, keepdim=True)

    def reached(cases: Sequence[Observation]) -> Reached:
        try:
            found = run(cases, Budget(iterations, 1), list(range(len(cases))))
        except FedsealError:
            return Reached(float("-inf"), -1.0)
        decibels, likenesses = [], []
        for truth, one in zip(images, found, strict=True):
            matched = one.images[hungarian(truth, one.images)]
            near = psnr(truth, matched.to(truth), data_range=IMAGE_RANGE)
            blind = psnr(truth, guess.expand_as(truth), data_range=IMAGE_RANGE)
            decibels.append(float(torch.maximum(near, blind).mean()))
            likenesses.append(float(correlation(truth, matched.to(truth)).mean()))
        return Reached(fmean(decibels), fmean(likenesses))

    ignorant = [replace(case, knowledge=replace(case.knowledge, defence=None)) for case in shadows]
    return Weighed(reached(shadows), reached(ignorant), kind)
