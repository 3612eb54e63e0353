"""How well an inference tells yes from no: rank, and what it dares to say at few false alarms.

The area under the ROC curve is an average over all thresholds, most of which nobody would use; an attacker who names
few records and is right about them is what hurts (Carlini et al. 2022). So the risk is read off the share of yeses
found at one false alarm in a hundred, by the lower end of its interval. That an inference fails shows nothing: low is
only what is proven to leave every attacker next to nothing, whatever it computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, norm, rankdata

RATES = (0.01, 0.001)
"""False alarms at which the share of yeses found is told."""
LEVELS = (("very high", 0.5), ("high", 0.1), ("medium", 0.02))
"""Least share found at one false alarm in a hundred, by its interval's lower end; below, nothing was shown."""


@dataclass(frozen=True)
class Rate:
    """Yeses found at a bounded share of false alarms.

    Attributes:
        false_alarms: the bound, which is also what chance finds.
        found: share of yeses found.
        low, high: its 95 % interval (Clopper and Pearson).
    """

    false_alarms: float
    found: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """One score of one inference under one defence.

    Attributes:
        question: `membership`, `attribute` or `property`, and of what.
        defence: its spec.
        score: name of what was ranked by.
        yes, no: how many of either were asked.
        auc: area under the ROC curve; 0.5 is chance.
        auc_low, auc_high: its 95 % interval (Hanley and McNeil 1982).
        rates: at few false alarms; only those that so many noes can resolve.
        proven: the most any attacker finds at one false alarm in a hundred, by the privacy of the release; None where
            nothing is proven.
    """

    question: str
    defence: str
    score: str
    yes: int
    no: int
    auc: float
    auc_low: float
    auc_high: float
    rates: tuple[Rate, ...]
    proven: float | None = None

    @property
    def level(self) -> str:
        """The risk in a word: as found, else low where that is proven, else that nothing is shown."""
        for words, least in LEVELS:
            if self.rates and self.rates[0].low >= least:
                return words
        if self.proven is not None and self.proven < LEVELS[-1][1]:
            return "low"
        if not self.rates:
            return "too few"
        return "not shown" if self.auc_low <= 0.5 else "ranked, not named"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "level": self.level, "chance_auc": 0.5}


def sentence(outcomes: Sequence[Outcome]) -> str:
    """Return the verdict of one defence in words: that of the best of its scores, as an attacker takes the best."""
    order = [words for words, _ in LEVELS] + ["ranked, not named", "not shown", "too few", "low"]
    worst = min(outcomes, key=lambda one: (order.index(one.level), -one.auc))
    told = f"{worst.defence}: {worst.level}."
    if worst.proven is not None:
        told += f" Proven: at {RATES[0]:.0%} false alarms no attacker finds more than {worst.proven:.1%}."
    if worst.level in order[:3]:
        rate = worst.rates[0]
        told += f" At one false alarm in a hundred the score `{worst.score}` finds {rate.found:.0%}"
        told += f"; chance is {rate.false_alarms:.0%}."
    elif worst.level == order[3]:
        told += f" The score {worst.score} ranks better than chance, but names nobody at few false alarms."
    elif worst.level == "not shown":
        told += " No score tried tells more than chance, which shows nothing of others."
    elif worst.level == "too few":
        told += f" With {worst.no} noes one false alarm in a hundred cannot be told; ask for more rounds."
    return told


def judged(question: str, defence: str, score: str, values: Sequence[float], truth: Sequence[bool]) -> Outcome:
    """Return how well values, the larger the more likely, tell the truth."""
    scores, yes = np.asarray(values, dtype=float), np.asarray(truth, dtype=bool)
    scores = np.nan_to_num(scores, nan=-np.inf, posinf=np.finfo(float).max, neginf=-np.finfo(float).max)
    positives, negatives = int(yes.sum()), int((~yes).sum())
    if not positives or not negatives:
        raise ValueError("an inference needs yeses and noes")
    ranks = rankdata(scores)
    auc = float((ranks[yes].sum() - positives * (positives + 1) / 2) / (positives * negatives))
    half = float(norm.ppf(0.975)) * _hanley(auc, positives, negatives)
    rates = tuple(_rate(scores, yes, rate) for rate in RATES if negatives * rate >= 1)
    low, high = max(0.0, auc - half), min(1.0, auc + half)
    return Outcome(question, defence, score, positives, negatives, auc, low, high, rates)


def _hanley(auc: float, yes: int, no: int) -> float:
    """Return the standard error of an area under the curve; never zero, by a count of half an error."""
    area = min(max(auc, 0.5 / (yes * no)), 1 - 0.5 / (yes * no))
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (yes - 1) * (q1 - area**2) + (no - 1) * (q2 - area**2)
    return math.sqrt(max(spread, 0.0) / (yes * no))


def _rate(scores: np.ndarray[Any, Any], yes: np.ndarray[Any, Any], bound: float) -> Rate:
    """Return the share of yeses above the threshold that lets at most `bound` of the noes pass."""
    noes = np.sort(scores[~yes])[::-1]
    threshold = noes[math.floor(bound * len(noes))] if math.floor(bound * len(noes)) < len(noes) else -np.inf
    hits, total = int((scores[yes] > threshold).sum()), int(yes.sum())
    low = float(beta.ppf(0.025, hits, total - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, total - hits)) if hits < total else 1.0
    return Rate(bound, hits / total, low, high)
