"""How much of a text came back: token precision, recall and F1, ROUGE, exact matches, edit distance.

Tokens are compared as multisets, as TAG and LAMP do: an attack that knows the words and not their order has them.
ROUGE-2 and the edit distance are the ones that mind the order. ROUGE is Google's (`rouge-score`, extra `text`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Tokens: TypeAlias = Sequence[int]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Overlap:
    """What two multisets share.

    Attributes:
        precision: share of the claimed that was there.
        recall: share of what was there that is claimed.
    """

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Their harmonic mean."""
        both = self.precision + self.recall
        return 0.0 if both == 0 else 2 * self.precision * self.recall / both


def overlap(truth: Tokens, claim: Tokens, size: int = 1) -> Overlap:
    """Return what a claimed text shares with a true one, by runs of `size` tokens."""
    first, second = (_runs(tokens, size) for tokens in (truth, claim))
    shared = sum((first & second).values())
    return Overlap(shared / max(1, second.total()), shared / max(1, first.total()))


def f1_matrix(
    truths: Sequence[Tokens], claims: Sequence[Tokens], size: int = 1
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the F1 of every true text with every claimed one, [N, K]."""
    rows, columns = ([_runs(tokens, size) for tokens in texts] for texts in (truths, claims))
    found = np.zeros((len(rows), len(columns)))
    for i, one in enumerate(rows):
        for j, other in enumerate(columns):
            shared = sum((one & other).values())
            found[i, j] = 2 * shared / max(1, one.total() + other.total())
    return found


def matched(truths: Sequence[Tokens], claims: Sequence[Tokens]) -> list[int]:
    """Return for every true text the claimed one it is paired with: the assignment of most F1 in all."""
    places, partners = linear_sum_assignment(-f1_matrix(truths, claims))
    found = dict(zip(places.tolist(), partners.tolist(), strict=True))
    return [found.get(place, 0) for place in range(len(truths))]


def edit_distance(truth: Tokens, claim: Tokens) -> int:
    """Return how many tokens must be put in, taken out or changed (Levenshtein)."""
    row = list(range(len(claim) + 1))
    for i, one in enumerate(truth, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(claim, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (one != other))
    return row[-1]


def edit_share(truth: Tokens, claim: Tokens) -> float:
    """Return the edit distance by the longer text's length: 0 for equal, 1 for nothing alike."""
    return edit_distance(truth, claim) / max(1, len(truth), len(claim))


def rouge(truth: str, claim: str) -> dict[str, float] | None:
    """Return the F of ROUGE-1, ROUGE-2 and ROUGE-L of two texts; None without the library."""
    scorer = _scorer()
    if scorer is None:
        return None
    return {name: float(found.fmeasure) for name, found in scorer.score(truth, claim).items()}


def why_no_rouge() -> str | None:
    """Return why ROUGE is not measured; None if it is."""
    return None if _scorer() is not None else "not measured: install rouge-score (extra `text`)"


@cache
def _scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        return None
    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)


def _runs(tokens: Tokens, size: int) -> Counter[Any]:
    if size == 1:
        return Counter(tokens)
    return Counter(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))
