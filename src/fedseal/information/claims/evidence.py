"""What a library's own code gives away, run with and without a canary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedseal.information.claims.mechanism import Rehearsal
from fedseal.information.claims.rehearsals import SILENCE
from fedseal.information.epsilon_bounds import LowerBound, repeated

_LOUDNESS = 10.0
_SEEDS = 200_000
"""Runs that two seeds next to each other are apart."""


@dataclass(frozen=True)
class Evidence:
    """What the library's own code gave away.

    Attributes:
        of: what was run.
        runs: how often, half of the time with the canary.
        bound: what the outputs prove.
        confidence: of it.
    """

    of: str
    runs: int
    bound: LowerBound
    confidence: float


def gathered(rehearsal: Rehearsal, delta: float, runs: int, confidence: float, seed: int) -> Evidence:
    """Run it with and without a canary, a loud one, so that clipping acts in full."""
    quiet = np.full(rehearsal.size, -_LOUDNESS if rehearsal.spread else SILENCE)
    canary = -quiet if rehearsal.spread else quiet.copy()
    canary[0] = _LOUDNESS
    scores: dict[bool, list[float]] = {True: [], False: []}
    for run in range(runs):
        there = run % 2 == 0
        out = rehearsal.play(canary if there else quiet, (seed * _SEEDS + run) % 2**32)
        scores[there].append(float(out.sum() if rehearsal.spread else out[0]))
    bound = repeated(np.array(scores[True]), np.array(scores[False]), delta, confidence)
    return Evidence(rehearsal.of, runs, bound, confidence)
