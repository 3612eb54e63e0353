"""Exact confidence limits of a probability (Clopper and Pearson 1934)."""

from __future__ import annotations

from scipy.stats import beta

from fedseal.core.errors import InputError


def upper_limit(hits: int, n: int, confidence: float) -> float:
    """Return the largest probability that `hits` of `n` do not refute, one-sided at `confidence`."""
    _check(hits, n, confidence)
    return 1.0 if hits == n else float(beta.ppf(confidence, hits + 1, n - hits))


def lower_limit(hits: int, n: int, confidence: float) -> float:
    """Return the least probability that `hits` of `n` do not refute, one-sided at `confidence`."""
    _check(hits, n, confidence)
    return 0.0 if hits == 0 else float(beta.ppf(1 - confidence, hits, n - hits + 1))


def _check(hits: int, n: int, confidence: float) -> None:
    if not 0 <= hits <= n or n < 1 or not 0 < confidence < 1:
        raise InputError(f"a limit needs 0 <= hits <= n, n >= 1 and 0 < confidence < 1, got {hits}, {n}, {confidence}.")
