"""What the ranks of many line-ups say together: shares, intervals and p-values, with their dependence accounted for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from fedseal.metrics.intervals import Interval
from fedseal.metrics.shares import clustered_share

ALPHA = 0.02
"""Family-wise significance: over both tests, all similarities and all attacks on a defence."""

NEAR = 0.05
"""Share of the line-up that counts as its front."""


@dataclass(frozen=True)
class Placed:
    """One original's place in its line-up: rank from 1 among `size`, `twins` near-duplicates taken out."""

    rank: int
    size: int
    twins: int = 0


@dataclass(frozen=True)
class Picked:
    """How often originals are picked out, by the similarity that does it best.

    Attributes:
        similarity: which; both p-values carry the factor of all that were looked at.
        first: share of originals ranked first, with its interval.
        near: share in the first 5 %, with its interval.
        count: originals ranked first.
        n: originals.
        size: N, the smallest line-up.
        chance: probability of being first without a leak.
        p_first: of so many firsts without a leak.
        p_ranks: of so small a sum of ranks without a leak.
        tried: similarities looked at, times the cells that are read together.
    """

    similarity: str
    first: Interval
    near: Interval
    count: int
    n: int
    size: int
    chance: float
    p_first: float
    p_ranks: float
    tried: int

    @property
    def significant(self) -> bool:
        """Whether originals are first more often than chance, or ranked better."""
        return min(self.p_first, self.p_ranks) < ALPHA / 2


def picked(places: dict[str, Sequence[Sequence[Placed]]], *, cells: int = 1) -> Picked | None:
    """Return the best similarity's reading of all line-ups; None if there is none.

    Args:
        places: by similarity, one list of places per attacked batch.
        cells: how many attacks on the same defence are read, of which the worst will count.
    """
    known = {name: [list(batch) for batch in batches if batch] for name, batches in places.items()}
    readings = [_read(name, batches, cells * len(known)) for name, batches in known.items() if batches]
    return min(readings, key=lambda r: (-r.count, r.p_ranks), default=None)


def _read(similarity: str, batches: list[list[Placed]], tried: int) -> Picked:
    flat = [place for batch in batches for place in batch]
    size = min(place.size for place in flat)
    chance = sum((1 + place.twins) / place.size for place in flat) / len(flat)
    count = sum(place.rank == 1 for place in flat)
    return Picked(
        similarity,
        clustered_share([[float(place.rank == 1) for place in batch] for batch in batches]),
        clustered_share([[float(_position(place) <= NEAR) for place in batch] for batch in batches]),
        count,
        len(flat),
        size,
        chance,
        min(1.0, tried * _tail(count, len(flat), chance)),
        min(1.0, tried * _rank_sum(flat, size)),
        tried,
    )


def _position(place: Placed) -> float:
    """Return where an original stands, 1/N for the first to 1 for the last; twins count as ranked before it."""
    return (place.rank + place.twins) / place.size


def _tail(count: int, n: int, chance: float) -> float:
    """Return P(K >= count) of a beta-binomial: all line-ups share their strangers.

    An attack that answers the same picture to everything ranks every original against the same strangers. Given these,
    originals are first independently, with a probability that is itself Beta(1, N - 1): the extreme of dependence.
    """
    others = 1 / chance - 1 if chance < 1 else 1e-9
    if count == 0:
        return 1.0
    logs = [
        _log_choose(n, k) + special.betaln(k + 1, n - k + others) - special.betaln(1, others)
        for k in range(count, n + 1)
    ]
    return min(1.0, float(sum(math.exp(value) for value in logs)))


def _rank_sum(places: list[Placed], size: int) -> float:
    """Return P(mean position <= this) without a leak, by the normal law.

    Positions are uniform on k/N; shared strangers add (1/12)/N to the variance of their mean at most.
    """
    n = len(places)
    mean = sum(map(_position, places)) / n
    expected = sum((1 + 1 / place.size) / 2 for place in places) / n
    deviation = math.sqrt((1 / n + 1 / size) / 12)
    return float(special.ndtr((mean - expected) / deviation))


def _log_choose(n: int, k: int) -> float:
    return float(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))
