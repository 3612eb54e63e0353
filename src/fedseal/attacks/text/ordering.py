"""What orders words: how probable a text is by public ones, and the rearrangements that are tried."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch


class Bigrams:
    """How probable texts are by pairs of neighbours in public ones, smoothed by single words.

    Args:
        texts: public ids.
        tokens: how many there are.
    """

    def __init__(self, texts: Sequence[Sequence[int]], tokens: int) -> None:
        self._single = Counter(one for text in texts for one in text)
        self._pairs = Counter(pair for text in texts for pair in pairwise(text))
        self._total = self._single.total()
        self._tokens = tokens

    def loss(self, text: Sequence[int]) -> float:
        """Return the mean negative logarithm of a text's tokens given the ones before."""
        if len(text) < 2:
            return 0.0
        return -sum(math.log(self._given(a, b)) for a, b in pairwise(text)) / (len(text) - 1)

    def _given(self, before: int, token: int) -> float:
        alone = (self._single[token] + 0.1) / (self._total + 0.1 * self._tokens)
        return (self._pairs[before, token] + 5 * alone) / (self._single[before] + 5)


def rearranged(length: int, kind: int, source: torch.Generator) -> list[int]:
    """Return an order of `length` words: two swapped, one moved, a span moved, or a prefix put behind."""
    order = list(range(length))
    if length < 2:
        return order
    i, j = sorted(torch.randint(length, (2,), generator=source).tolist())
    if kind == 0:
        order[i], order[j] = order[j], order[i]
    elif kind == 1:
        order.insert(int(torch.randint(length, (1,), generator=source)), order.pop(i))
    elif kind == 2:
        span, rest = order[i : j + 1], order[:i] + order[j + 1 :]
        place = int(torch.randint(len(rest) + 1, (1,), generator=source))
        order = rest[:place] + span + rest[place:]
    else:
        order = order[i:] + order[:i]
    return order
