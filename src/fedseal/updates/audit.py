"""The audit of one real update: attack it from several starts, then score, or say how sure the attacker can be.

Nobody may have the originals, the attacker least of all. What it has are its own means to judge a reconstruction: the
*residual*, how much of the update the images leave unexplained, beside what random images leave; and the *agreement*
of independent starts, the mean PSNR between the images they end in. Starts that agree on images which explain the
update have found what was there; starts that disagree have found one of many answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.audit.cells import Standing
from fedseal.audit.evidence import ORACLE_MARGIN_DB
from fedseal.audit.levels import RiskLevel, State, level_of
from fedseal.core.attack import ATTACKS, Attack, Budget, Listener
from fedseal.core.batch import Batch
from fedseal.core.errors import InputError, TrialError, UsageError
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import derive_seed
from fedseal.metrics.baselines import ROUNDING, attainable, chance_baselines, flat, noise, winsorised
from fedseal.metrics.gradient import relative_distance
from fedseal.metrics.image import psnr
from fedseal.metrics.lpips import Lpips
from fedseal.metrics.matching import IMAGE_RANGE, hungarian
from fedseal.metrics.score import Scores, score
from fedseal.updates.case import UpdateCase
from fedseal.updates.unknowns import explanation, resolved

Confidence: TypeAlias = Literal["high", "medium", "low"]
_CONFIDENT = {"high": RiskLevel.VERY_HIGH, "medium": RiskLevel.MEDIUM, "low": RiskLevel.LOW}

AGREE_DB = 20.0
"""Starts whose images are this close show the same picture; the level from which risk is very high."""
EXPLAINED = 0.2
"""A residual of at most this share of what random images leave counts as explained."""


@dataclass(frozen=True)
class Attempt:
    """What one attack made of the update.

    Attributes:
        attack: its spec.
        best: of all starts, the one with the least objective.
        starts: how many there were; diverged ones are not counted.
        residual: |update - update of the images| / |update|; None for an update of zeros.
        noise_residual: the same for random images.
        agreement: mean PSNR in dB between the starts' images; None with a single start.
        scores: against the originals, where they are known.
        baselines: PSNR in dB of guesses made without the update, per original.
        level: risk of what was found; None without originals, and where no leak was.
    """

    attack: str
    best: Reconstruction
    starts: int
    residual: float | None
    noise_residual: float | None
    agreement: float | None
    scores: Scores | None = None
    baselines: dict[str, tuple[float, ...]] | None = None
    level: RiskLevel | None = None

    @property
    def standing(self) -> Standing | None:
        """The level, or that nothing was shown: one update without a leak does not make a low risk."""
        return self.level if self.level is not None or self.scores is None else State.NOT_SHOWN

    @property
    def explained(self) -> bool:
        """Whether the images explain the update far better than random ones."""
        if self.residual is None or self.noise_residual is None:
            return False
        return self.residual <= EXPLAINED * self.noise_residual

    @property
    def confidence(self) -> Confidence:
        """How sure the attacker can be, without the originals."""
        agreed = self.agreement is not None and self.agreement >= AGREE_DB
        if self.explained and agreed:
            return "high"
        return "medium" if self.explained or agreed else "low"


@dataclass(frozen=True)
class UpdateAudit:
    """All attempts on one update.

    Attributes:
        case: what was attacked.
        attempts: one per attack, in the order asked for.
        command: that made it, for the report.
        seed: of all starts.
    """

    case: UpdateCase
    attempts: tuple[Attempt, ...]
    command: str
    seed: int

    @property
    def worst(self) -> Attempt:
        """The attempt to show first: the best scored one, or without originals the one with the least residual."""

        def rank(attempt: Attempt) -> float:
            if attempt.scores is not None:
                return attempt.scores.mean_psnr
            return -(attempt.residual if attempt.residual is not None else float("inf"))

        return max(self.attempts, key=rank)

    @property
    def level(self) -> RiskLevel | None:
        """The worst risk; None without originals, and where no attack found anything."""
        return max((attempt.level for attempt in self.attempts if attempt.level is not None), default=None)

    def reaches(self, limit: RiskLevel) -> bool:
        """Whether the risk is at a limit or above; without originals, whether the attacker's own confidence is."""
        if limit is RiskLevel.LOW:
            return True
        if self.worst.scores is None:
            sure = max((_CONFIDENT[attempt.confidence] for attempt in self.attempts), default=RiskLevel.LOW)
            return sure >= limit
        return self.level is not None and self.level >= limit

    @property
    def standing(self) -> Standing | None:
        """The worst level, or that nothing was shown; None without originals."""
        return self.level if self.level is not None else self.worst.standing

    def sentence(self) -> str:
        """Return the result in a sentence."""
        worst = self.worst
        images = len(worst.best.images)
        what = "the image" if images == 1 else f"the {images} images"
        if worst.scores is not None:
            risk = (
                "no leak is shown, nor that there is none" if self.level is None else f"the risk is {self.level.words}"
            )
            return f"{worst.attack} rebuilt {what} behind this update to {worst.scores.mean_psnr:.1f} dB PSNR: {risk}."
        words = {
            "high": f"{worst.attack} rebuilt {what} behind this update, and can be sure of it without the original.",
            "medium": f"{worst.attack} rebuilt something from this update; it cannot be sure that it is {what}.",
            "low": f"{worst.attack} did not rebuild {what} behind this update; that is no proof that nobody can.",
        }
        return words[worst.confidence]


def audit_update(
    case: UpdateCase,
    attacks: Sequence[str],
    *,
    iterations: int | None = None,
    restarts: int = 3,
    seed: int = 0,
    public: Batch | None = None,
    lpips: Lpips | None = None,
    command: str = "",
    listener: Listener | None = None,
    search: bool = True,
) -> UpdateAudit:
    """Attack an update with every attack named, from `restarts` independent starts each.

    Args:
        case: what to attack.
        attacks: specs.
        iterations: per start; None for each attack's own.
        restarts: starts whose results are compared.
        seed: of the starts.
        public: images of the same kind, for chance baselines beside originals; those equal to one are left out.
        lpips: the perceptual metric, or None where its weights are absent.
        command: that was given, for the report.
        listener: told of progress.
        search: whether what nobody said of the client is searched first (`unknowns`).
    """
    built = [(name, ATTACKS.build(name)) for name in attacks]
    for _, attack in built:
        attack.check(case.observation)  # all of them, before the first takes its time
    if not search and "learning_rate" in case.unknown:
        raise UsageError(
            "a weight change can be read as a gradient only with the learning rate.",
            hint="Give --learning-rate, or let it be searched.",
        )
    if search:
        case = resolved(case, derive_seed(seed, "unknowns"))
    attempts = []
    for name, attack in built:
        found = _starts(case, attack, Budget(iterations, 1), restarts, derive_seed(seed, "attack", name), listener)
        best = min(found, key=lambda reconstruction: reconstruction.objective)
        random = noise(best.images, derive_seed(seed, "noise"))
        attempt = Attempt(
            attack=name,
            best=best,
            starts=len(found),
            residual=_residual(case, best.images, best.labels),
            noise_residual=_residual(case, random, best.labels),
            agreement=_agreement([reconstruction.images for reconstruction in found]),
        )
        attempts.append(_scored(attempt, case, public, lpips, seed))
    return UpdateAudit(case, tuple(attempts), command, seed)


def _starts(
    case: UpdateCase, attack: Attack, budget: Budget, restarts: int, seed: int, listener: Listener | None
) -> list[Reconstruction]:
    """Return what every start ended in; as one vectorised batch, or one by one if some diverge."""
    seeds = [derive_seed(seed, "restart", start) for start in range(restarts)]
    try:
        return attack.run_many([case.observation] * restarts, budget, seeds, listener)
    except TrialError:
        if restarts == 1:
            raise
    found, last = [], None
    for start in seeds:
        try:
            found.append(attack.run(case.observation, budget, start, listener))
        except TrialError as error:
            last = error
    if not found and last is not None:
        raise last
    return found


def _residual(case: UpdateCase, images: Tensor, labels: Tensor) -> float | None:
    """Return how much of the update is left when these images explain what they can of it."""
    return relative_distance(*explanation(case, images, labels))


def _agreement(images: Sequence[Tensor]) -> float | None:
    """Return the mean PSNR in dB over all pairs of starts, each pair matched image by image."""
    pairs = [
        float(psnr(one, other[hungarian(one, other)], data_range=IMAGE_RANGE).mean())
        for one, other in combinations([stack.detach().cpu() for stack in images], 2)
    ]
    return fmean(pairs) if pairs else None


def _scored(attempt: Attempt, case: UpdateCase, public: Batch | None, lpips: Lpips | None, seed: int) -> Attempt:
    """Add scores and chance baselines, where there are originals."""
    if case.originals is None:
        return attempt
    truth = case.originals.images
    scores = score(case.originals, attempt.best.images.cpu(), attempt.best.labels.cpu(), lpips)
    if public is not None:
        chance = chance_baselines(truth, case.originals.labels, _others(public, truth), seed)
    else:  # what can be guessed from nothing; what other images of the kind would give is not known
        chance = {
            "noise": psnr(truth, noise(truth, seed), data_range=IMAGE_RANGE),
            "flat": psnr(truth, flat(truth), data_range=IMAGE_RANGE),
        }
    baselines = {name: tuple(values.tolist()) for name, values in chance.items()}
    return Attempt(
        attempt.attack,
        attempt.best,
        attempt.starts,
        attempt.residual,
        attempt.noise_residual,
        attempt.agreement,
        scores,
        baselines,
        _level(scores, baselines),
    )


def _level(scores: Scores, baselines: dict[str, tuple[float, ...]]) -> RiskLevel | None:
    """Return the level of the mean, if it beats the guesses one can make, or of single images beyond every guess."""
    able = attainable(baselines, labels_right=scores.label_accuracy == 1.0)
    if "mean_image" not in able:  # without public data nobody knows the prior: a flat picture stands for it
        able = tuple(baselines)
    beaten = all(fmean(scores.psnr) > fmean(winsorised(baselines[name])) for name in able)
    limits = [max(values) + ORACLE_MARGIN_DB for values in zip(*baselines.values(), strict=True)]
    victims = [value for value, limit in zip(scores.psnr, limits, strict=True) if value > min(limit, 99.0)]
    level = level_of(max([scores.mean_psnr if beaten else 0.0, *victims]))
    return None if level is RiskLevel.LOW else level


def _others(public: Batch, originals: Tensor) -> Batch:
    """Return the public images that are none of the originals, up to the rounding of eight bits."""
    images = public.images.to(originals)
    same = torch.stack([(images - one).flatten(1).abs().amax(1) <= ROUNDING for one in originals]).any(0)
    if bool(same.all()):
        raise InputError("the public images are the originals themselves.", hint="Give others with --public.")
    return Batch(images[~same], public.labels[~same])
