"""Singled out, for text: whether what was recovered points at its original among strangers' texts.

As for images (`metrics.singling`): a candidate counts by its likeness to the most similar of the recovered texts, the
original like the strangers, and ties count against the attacker; chance is 1/N. Likeness is shared words, or shared
pairs of words in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedseal.metrics.singling import FEWEST_STRANGERS, SHOWN, LineUp
from fedseal.metrics.text import Tokens, f1_matrix

TEXT_SIMILARITY_WORDS = {"words": "the F1 of the words", "pairs": "the F1 of pairs of words in a row"}
TWIN = 0.9
"""A stranger that shares so much with an original, by the F1 of its words, is taken out of the line-up."""


def text_line_up(
    originals: Sequence[Tokens],
    recovered: Sequence[Tokens],
    strangers: Sequence[Tokens],
    allowed: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
) -> LineUp | None:
    """Rank every original among the strangers, or return None where these are too few.

    Args:
        originals: of the batch.
        recovered: in any order.
        strangers: that neither attack nor baselines have seen.
        allowed: [B, N - 1], which strangers stand in the line-up of which original.
    """
    if allowed.shape[1] == 0 or int(allowed.sum(1).min()) < FEWEST_STRANGERS:
        return None
    kept = allowed & (f1_matrix(originals, strangers) < TWIN)
    candidates = [*originals, *strangers]
    scores = {name: f1_matrix(candidates, recovered, size).max(1) for name, size in (("words", 1), ("pairs", 2))}
    b = len(originals)
    ranks = {n: tuple((1 + (kept & (s[None, b:] >= s[:b, None])).sum(1)).tolist()) for n, s in scores.items()}
    words = scores["words"]
    hidden = np.where(kept, words[None, b:], 0.0).max(1)
    return LineUp(
        ranks,
        tuple((1 + allowed.sum(1)).tolist()),
        tuple((allowed & ~kept).sum(1).tolist()),
        tuple((100 * hidden).tolist()),
        tuple(_top(words[i], np.where(kept[i], words[b:], -1.0)) for i in range(b)),
    )


def _top(own: float, others: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[int, ...]:
    order = np.argsort(-np.append(others, own), kind="stable").tolist()
    front = [-1 if index == len(others) else index for index in order[:SHOWN]]
    return tuple(front if -1 in front else [*front[:-1], -1])
