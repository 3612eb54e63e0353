"""Which search, with which settings, and how far to trust each member: decided on shadows, where the truth is known.

Searches race by successive halving (Jamieson and Talwalkar 2016): all with a quarter of the budget on a pair of
shadows, the better half with half of it on all of them, the best with all; never with so little that only the strongest
prior can look good, nor with more than it takes to tell them apart: what is left is for the targets. A budget too small
to be halved has one heat only. For an attacker who knows the defence, the better half also runs as if it did not know
it: knowledge that does not help is not used. What every member then reaches on the shadows, beside how well its images
explain the update, gives an expected score for any answer it will give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedseal.attacks.explaining import Mismatch
from fedseal.attacks.shadow.targets import Shadows
from fedseal.core.attack import ATTACKS, Budget, Listener
from fedseal.core.errors import CapabilityError, FedsealError
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import derive_seed

_SHORTEST = 60
_LONGEST = 150
"""Iterations of a race's first heat, at least (where the budget has as many) and at most; twice that in the second."""
_PAIR = 2
"""Shadows of the first heat."""
_STEEPEST = 20.0
"""Decibels a tenfold better explanation may be worth, at most: as much as an exact solution's error shrinks by."""
_LEAST = 1e-12


@dataclass(frozen=True)
class Member:
    """An attack by its spec, with or without what is known of the defence."""

    spec: str
    aware: bool

    def __str__(self) -> str:
        return self.spec if self.aware else f"{self.spec}, ignoring the defence"


@dataclass(frozen=True)
class Trust:
    """What to expect of a member's answers: a line through (log10 mismatch, PSNR) of its answers to shadows.

    Attributes:
        mismatch: mean log10 of how badly its answers explained the shadows' updates.
        quality: mean PSNR in dB.
        slope: dB per tenfold mismatch; never positive.
    """

    mismatch: float
    quality: float
    slope: float

    @classmethod
    def of(cls, mismatches: Sequence[float], scores: Sequence[float]) -> Trust:
        """Fit the line by least squares; one extra point at the mean keeps a few close points from deciding it."""
        logs = [math.log10(max(value, _LEAST)) for value in mismatches]
        centre, quality = fmean(logs), fmean(scores)
        spread = sum((x - centre) ** 2 for x in logs) + 0.1
        slope = sum((x - centre) * (y - quality) for x, y in zip(logs, scores, strict=True)) / spread
        return cls(centre, quality, min(0.0, max(-_STEEPEST, slope)))

    def expects(self, mismatch: float) -> float:
        """Return the PSNR in dB to expect of an answer with this mismatch."""
        return self.quality + self.slope * (math.log10(max(mismatch, _LEAST)) - self.mismatch)


def naive(observation: Observation) -> Observation:
    """Return the observation as one sees it who ignores the defence."""
    knowledge = observation.knowledge
    plain = None if knowledge.rehearse is None else knowledge.rehearse.plain()
    return replace(observation, knowledge=replace(knowledge, defence=None, rehearse=plain))


def attempt(
    member: Member,
    observations: Sequence[Observation],
    budget: Budget,
    seeds: Sequence[int],
    listener: Listener | None = None,
) -> list[Reconstruction | None]:
    """Return a member's answers, None where it has none: what it cannot attack, and what diverges."""
    seen = list(observations) if member.aware else [naive(observation) for observation in observations]
    attack = ATTACKS.build(member.spec)
    try:
        attack.check(seen[0])
        return list(attack.run_many(seen, budget, seeds, listener))
    except CapabilityError:
        return [None] * len(seen)
    except FedsealError:  # one of them may have spoilt it for all
        return [_alone(member.spec, one, budget, seed) for one, seed in zip(seen, seeds, strict=True)]


def _alone(spec: str, observation: Observation, budget: Budget, seed: int) -> Reconstruction | None:
    try:
        return ATTACKS.build(spec).run(observation, budget, seed)
    except FedsealError:
        return None


def judge(member: Member, shadows: Shadows, budget: Budget) -> Trust | None:
    """Return what to expect of a member, by its answers to all shadows; None if it does not answer them all."""
    seeds = [derive_seed(0, "shadow", number) for number in range(len(shadows.observations))]
    found = attempt(member, shadows.observations, budget, seeds)
    answers = [answer for answer in found if answer is not None]
    if len(answers) < len(found):
        return None
    pairs = zip(shadows.observations, answers, strict=True)
    mismatches = [Mismatch(observation)(answer.images, answer.labels) for observation, answer in pairs]
    return Trust.of(mismatches, shadows.scores(answers))


def race(shadows: Shadows, specs: Sequence[str], iterations: int, restarts: int | None) -> dict[Member, Trust]:
    """Return the winner among searches with what to expect of it; none if none answers the shadows."""
    defended = shadows.observations[0].knowledge.defence is not None
    heats = [_share(iterations, 4, _LONGEST), _share(iterations, 2, 2 * _LONGEST)]
    entered = [Member(spec, True) for spec in specs]
    better = list(_ranked(entered, shadows.first(_PAIR), heats[0], restarts))
    better = better[: max(1, len(better) // 2)]
    if defended:
        better += [Member(member.spec, False) for member in better]
    if len(better) > 1 and (defended or heats[0] < heats[1]):
        better = list(_ranked(better, shadows, heats[1], restarts))
    return dict(_ranked(better[:1], shadows, iterations, restarts))


def _share(iterations: int, part: int, most: int) -> int:
    return min(most, max(iterations // part, min(iterations, _SHORTEST)))


def _ranked(
    members: Sequence[Member], shadows: Shadows, iterations: int, restarts: int | None
) -> Mapping[Member, Trust]:
    """Return the members that answer the shadows, the best first."""
    judged = {member: judge(member, shadows, Budget(max(1, iterations), restarts)) for member in members}
    sound = {member: trust for member, trust in judged.items() if trust is not None}
    return dict(sorted(sound.items(), key=lambda pair: -pair[1].quality))
