"""Which search, with which settings, and how far to trust each member: decided on shadows, where the truth is known.

Searches race by successive halving (Jamieson and Talwalkar 2016): all with a quarter of the budget on a pair of
shadows, the better half with half of it on all of them; never with so little that only the strongest prior can look
good, nor with more than it takes to tell them apart: what is left is for the targets. A winner that is behind what
needs no search runs once more with all of its budget, lest half of it decides. With a budget too small for that the two
likeliest of the family run alone. For an attacker who knows the defence, the better half also runs as if it did
not know it: knowledge that does not help is not used. What every member then reaches on the shadows, beside how well
its images explain the update, tells what to expect of any answer it will give, as a picture of the original and as a
likeness that points at it among others: the smoothest guess is often the closer picture and the worse likeness.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedseal.attacks.explaining import Mismatch
from fedseal.attacks.shadow.targets import Shadows
from fedseal.core.attack import ATTACKS, Budget, Listener
from fedseal.core.errors import CapabilityError, FedsealError
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import derive_seed

_SHORTEST = 30
_LONGEST = 150
"""Iterations of a race's first heat, at least (where the budget has as many) and at most; twice that in the second."""
_PAIR = 2
"""Shadows of the first heat."""
_STEEPEST = 20.0
"""Decibels a tenfold better explanation may be worth, at most: as much as an exact solution's error shrinks by."""
_DOUBT = 0.1
"""Added to the sum of squares a slope is estimated from, so that a few close points do not decide it."""
_LEAST = 1e-12


@dataclass(frozen=True)
class Member:
    """An attack by its spec, with or without what is known of the defence."""

    spec: str
    aware: bool

    def __str__(self) -> str:
        return self.spec if self.aware else f"{self.spec}, ignoring the defence"


@dataclass(frozen=True)
class Record:
    """What a member came to on the shadows, one after the other.

    Attributes:
        mismatches: log10 of how badly its answers explained the shadows' updates.
        scores: PSNR in dB.
        pointed: by how much its answers were more correlated with the originals than with any other public image.
    """

    mismatches: tuple[float, ...]
    scores: tuple[float, ...]
    pointed: tuple[float, ...]

    @classmethod
    def of(cls, mismatches: Sequence[float], scores: Sequence[float], pointed: Sequence[float]) -> Record:
        """Keep mismatches on a logarithmic scale."""
        return cls(tuple(_log(value) for value in mismatches), tuple(scores), tuple(pointed))


@dataclass(frozen=True)
class Line:
    """What to expect of an answer by how badly it explains the update: a line through the mean on shadows.

    Attributes:
        mismatch: mean log10 of how badly answers explained the shadows' updates.
        mean: of what is expected.
        slope: per tenfold mismatch; never positive.
    """

    mismatch: float
    mean: float
    slope: float

    def expects(self, mismatch: float) -> float:
        """Return what to expect of an answer with this mismatch."""
        return self.mean + self.slope * (_log(mismatch) - self.mismatch)


@dataclass(frozen=True)
class Trust:
    """What to expect of a member's answers.

    Attributes:
        picture: their PSNR in dB.
        likeness: by how much they point at the originals among other images, in correlation.
    """

    picture: Line
    likeness: Line


def trusts(records: Mapping[Member, Record]) -> dict[Member, Trust]:
    """Return what to expect of each member, all judged on the same shadows.

    Some updates are hard to explain for everybody, which says nothing of who explains them best. So the slope is that
    of an analysis of variance with an effect for each member and for each shadow (Scheffe 1959), one for all members:
    when their answers to one target are compared, what is peculiar to the target falls out. A slope of each member's
    own does not have that: the one which varied least on a few shadows then looks best on every hard target.
    """
    across = [record.mismatches for record in records.values()]
    pictures = _lines(across, [record.scores for record in records.values()])
    likenesses = _lines(across, [record.pointed for record in records.values()])
    return dict(zip(records, map(Trust, pictures, likenesses), strict=True))


def _lines(across: Sequence[Sequence[float]], along: Sequence[Sequence[float]]) -> list[Line]:
    """Return each member's line: a slope they share, through its own means."""
    x, y = _peculiar(across), _peculiar(along)
    together = sum(a * b for a, b in zip(x, y, strict=True))
    slope = min(0.0, max(-_STEEPEST, together / (sum(a * a for a in x) + _DOUBT)))
    return [Line(fmean(own), fmean(values), slope) for own, values in zip(across, along, strict=True)]


def _peculiar(table: Sequence[Sequence[float]]) -> list[float]:
    """Return what neither its row's mean nor its column's explains of every entry."""
    rows, columns = [fmean(row) for row in table], [fmean(column) for column in zip(*table, strict=True)]
    middle = fmean(rows) if rows else 0.0
    return [
        value - own - shared + middle
        for row, own in zip(table, rows, strict=True)
        for value, shared in zip(row, columns, strict=True)
    ]


def _log(mismatch: float) -> float:
    return math.log10(max(mismatch, _LEAST))


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


def judge(member: Member, shadows: Shadows, budget: Budget) -> Record | None:
    """Return what a member's answers to all shadows come to; None if it does not answer them all."""
    seeds = [derive_seed(0, "shadow", number) for number in range(len(shadows.observations))]
    found = attempt(member, shadows.observations, budget, seeds)
    answers = [answer for answer in found if answer is not None]
    if len(answers) < len(found):
        return None
    pairs = zip(shadows.observations, answers, strict=True)
    mismatches = [Mismatch(observation)(answer.images, answer.labels) for observation, answer in pairs]
    return Record.of(mismatches, shadows.scores(answers), shadows.pointed(answers))


def race(
    shadows: Shadows, specs: Sequence[str], iterations: int, restarts: int | None, others: Iterable[Record] = ()
) -> dict[Member, Record]:
    """Return the winner among searches with what it came to; none if none answers the shadows.

    Args:
        shadows: to race on.
        specs: the searches, the likeliest first.
        iterations: of the whole budget.
        restarts: of each search; None for its own.
        others: what attacks without a search came to.
    """
    defended = shadows.observations[0].knowledge.defence is not None
    heats = [_share(iterations, 4, _LONGEST), _share(iterations, 2, 2 * _LONGEST)]
    better = [Member(spec, True) for spec in specs]
    if iterations > _SHORTEST:
        better = list(_ranked(better, shadows.first(_PAIR), heats[0], restarts))
    better = better[: max(_PAIR, len(better) // 2)]
    if defended:
        better += [Member(member.spec, False) for member in better]
    ranked = _ranked(better, shadows, heats[1], restarts)
    ahead = max((fmean(record.scores) for record in others), default=-math.inf)
    winner = dict(list(ranked.items())[:1])
    if heats[1] < iterations and any(fmean(record.scores) < ahead for record in winner.values()):
        winner |= _ranked(list(winner), shadows, iterations, restarts)
    return winner


def _share(iterations: int, part: int, most: int) -> int:
    return min(most, max(iterations // part, min(iterations, _SHORTEST)))


def _ranked(
    members: Sequence[Member], shadows: Shadows, iterations: int, restarts: int | None
) -> Mapping[Member, Record]:
    """Return the members that answer the shadows, those first whose places as picture and as likeness add up to least.

    Ties go to the better pictures.
    """
    judged = {member: judge(member, shadows, Budget(max(1, iterations), restarts)) for member in members}
    sound = {member: record for member, record in judged.items() if record is not None}
    pictures = sorted(sound, key=lambda member: -fmean(sound[member].scores))
    likenesses = sorted(sound, key=lambda member: -fmean(sound[member].pointed))
    ranked = sorted(pictures, key=lambda member: pictures.index(member) + likenesses.index(member))
    return {member: sound[member] for member in ranked}
