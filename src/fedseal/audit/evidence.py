"""What the trials of one cell show: scores against guesses, the worst victim, line-ups and labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedseal.audit.levels import RiskLevel, level_of, thresholds
from fedseal.metrics.intervals import FEWEST, Interval, nested_mean
from fedseal.metrics.picked import Picked, Placed, picked
from fedseal.metrics.scales import PSNR, Scale, scale_called
from fedseal.metrics.shares import clustered_share, effective_tries, lower_limit
from fedseal.store.records import TrialRecord

ORACLE_MARGIN_DB = PSNR.oracle_margin
"""How far above every guess, also those that look at the original, where strangers are too few to compare with."""

LABEL_ALPHA = 0.02
"""Family-wise significance of labels that are read better than guessed, over all attacks on a defence."""


@dataclass(frozen=True)
class Chance:
    """What guessing gives: the strongest guess an attacker can make, its mean PSNR, and the excess over it.

    Attributes:
        name: of the baseline.
        psnr: its mean over the same images.
        excess: mean paired difference to it, with its interval; scores above the scale's ceiling are taken as that, and
            samples that the guess rebuilds as well are left out: blank or public ones cannot be leaked.
        margin: by how much less than a guess an attack has failed.
    """

    name: str
    psnr: float
    excess: Interval
    margin: float = PSNR.failed

    @property
    def beaten(self) -> bool:
        """Whether the attack is reliably better."""
        return self.excess.low is not None and self.excess.low > 0

    @property
    def attack_failed(self) -> bool:
        """Whether the attack is reliably and by far worse than doing nothing."""
        return self.excess.high is not None and self.excess.high < -self.margin


@dataclass(frozen=True)
class Victims:
    """Single images that were recovered, whatever the mean says.

    Attributes:
        count: images above every stranger of the cell by the scale's margin.
        n: images attacked.
        best_psnr: of the best recovered image, victim or not.
        level: of the best recovered victim; None if there is none.
        shares: by level, the share of images at or above it, with its interval.
    """

    count: int
    n: int
    best_psnr: float
    level: RiskLevel | None
    shares: dict[RiskLevel, Interval]


@dataclass(frozen=True)
class Labels:
    """How well labels are recovered.

    Attributes:
        accuracy: share of labels right, with its interval.
        chance: accuracy expected of a guess by public class frequencies.
        least: exact lower limit of the accuracy, at `LABEL_ALPHA` over all attacks on the defence; None where there are
            fewer than four batches.
    """

    accuracy: Interval
    chance: float
    least: float | None

    @property
    def leaked(self) -> bool:
        """Whether labels are reliably better recovered than guessed, over at least four batches."""
        return self.least is not None and self.least > self.chance


def by_seed(records: Sequence[TrialRecord], values: Iterable[Sequence[float]], seed: int) -> Interval:
    """Return the mean over trials: images of one batch are not independent, nor are batches of one set of weights."""
    groups: dict[int, list[float]] = {}
    for record, part in zip(records, values, strict=True):
        groups.setdefault(record.weight_seed, []).append(fmean(part))
    return nested_mean(list(groups.values()), seed=seed)


def against_chance(done: Sequence[TrialRecord], seed: int) -> Chance | None:
    """Compare scores with the strongest guess an attacker can make; None where no guess is known."""
    scale = scale_of(done)
    named = [name for name in scale.attainable if all(name in r.baselines for r in done)]
    guesses = {name: [attainable_guess(r, name, scale) for r in done] for name in named}
    if not guesses:
        return None
    strongest = max(guesses, key=lambda name: fmean(fmean(part) for part in guesses[name]))
    chance = guesses[strongest]
    pairs = [
        [p - c for p, c in zip(scale.capped(r.psnr), part, strict=True) if c < scale.ceiling]
        for r, part in zip(done, chance, strict=True)
    ]
    telling = [(record, part) for record, part in zip(done, pairs, strict=True) if part]
    if not telling:
        return None
    excess = by_seed([record for record, _ in telling], [part for _, part in telling], seed)
    return Chance(strongest, fmean(fmean(part) for part in chance), excess, scale.failed)


def scale_of(records: Sequence[TrialRecord]) -> Scale:
    """Return what the scores of trials are measured in."""
    return scale_called(records[0].scale) if records else PSNR


def attainable_guess(record: TrialRecord, name: str, scale: Scale) -> list[float]:
    """Return a guess's scores; an attacker without the right labels guesses as of all classes instead."""
    able = record.label_accuracy == 1.0 or not name.startswith("class_")
    return scale.capped(record.baselines[name if able else scale.fallback])


def worst_victims(done: Sequence[TrialRecord]) -> Victims:
    """Look for single images that no chance explains."""
    scale = scale_of(done)
    compared = all(record.stranger_psnr for record in done)
    ceiling = max((value for r in done for value in r.stranger_psnr), default=0.0) + scale.victim_margin
    hits: list[float] = []
    for record in done:
        best = record.psnr_best or record.psnr
        for index, value in enumerate(best):
            oracle = max((scores[index] for scores in record.baselines.values()), default=0.0) + scale.oracle_margin
            if value > (ceiling if compared else min(oracle, 99.0)):
                hits.append(value)
    images = [value for record in done for value in record.psnr]
    level = level_of(max(hits), scale) if hits else None
    return Victims(
        len(hits),
        len(images),
        max(images),
        None if level is RiskLevel.LOW else level,
        {
            level: clustered_share([[float(v >= limit) for v in r.psnr] for r in done])
            for level, limit in thresholds(scale)
        },
    )


def singled_out(done: Sequence[TrialRecord], cells: int = 1) -> Picked | None:
    """Read the line-ups of one of several cells of a defence; None where strangers were too few in any trial."""
    if not done or any(not record.ranks for record in done):
        return None
    names = [name for name in done[0].ranks if all(name in record.ranks for record in done)]
    return picked({name: [_places(record, name) for record in done] for name in names}, cells=cells)


def _places(record: TrialRecord, name: str) -> list[Placed]:
    return [Placed(*place) for place in zip(record.ranks[name], record.line_up, record.twins, strict=True)]


def recovered_labels(done: Sequence[TrialRecord], cells: int = 1) -> Labels | None:
    """Read the labels in one of several cells of a defence; None where the attacker had them, or nobody looked."""
    known = [(r.label_accuracy, r.label_chance, len(r.psnr)) for r in done]
    pairs = [(accuracy, chance, n) for accuracy, chance, n in known if accuracy is not None and chance is not None]
    if len(pairs) < len(known) or not pairs:
        return None
    chance = fmean(chance for _, chance, _ in pairs)
    groups = [[1.0] * round(a * n) + [0.0] * (n - round(a * n)) for a, _, n in pairs]
    accuracy = clustered_share(groups)
    if len(pairs) < FEWEST:
        return Labels(Interval(accuracy.mean, None, None, accuracy.n), chance, None)
    share, effective = effective_tries(groups)
    return Labels(accuracy, chance, lower_limit(min(share * effective, effective), effective, 1 - LABEL_ALPHA / cells))
