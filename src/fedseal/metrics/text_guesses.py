"""What one recovers of a text without its update: frequent words, or a public text.

The public text whose own gradient is most like the update is the strongest guess; it takes the model, so it is an
attack of its own, `retrieval`, and runs beside the others. `nearest` looks at the original: nobody can, it is a
reference line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedseal.metrics.text import Tokens, f1_matrix, overlap


def frequent(public: Sequence[Tokens], count: int) -> list[int]:
    """Return the `count` most frequent tokens of public texts, a token as often as its share of them asks for."""
    tally = Counter(token for text in public for token in text)
    total = tally.total()
    if not total or count < 1:
        return []
    wanted = {token: count * times / total for token, times in tally.items()}
    bag = [token for token, share in tally.most_common() for _ in range(int(count * share / total))]
    rest = sorted(wanted, key=lambda token: int(wanted[token]) - wanted[token])
    return (bag + rest)[:count]


def text_baselines(
    originals: Sequence[Tokens], labels: Sequence[int], public: Sequence[Tokens], public_labels: Sequence[int]
) -> dict[str, tuple[float, ...]]:
    """Return the F1, in per cent, of every guess on every original; guesses are as long as the original."""
    by_class = {
        label: [text for text, own in zip(public, public_labels, strict=True) if own == label] or list(public)
        for label in set(labels)
    }
    guesses = {
        "frequent": [frequent(public, len(text)) for text in originals],
        "class_frequent": [frequent(by_class[label], len(text)) for text, label in zip(originals, labels, strict=True)],
    }
    found = {
        name: tuple(100 * overlap(text, guess).f1 for text, guess in zip(originals, made, strict=True))
        for name, made in guesses.items()
    }
    return {**found, "nearest": tuple((100 * f1_matrix(originals, public).max(1)).tolist())}
