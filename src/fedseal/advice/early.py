"""When a training is not worth its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedseal.federation.simulation import RoundRecord

_FIRST = 0.25
"""Share of the rounds that every training is given."""
_PATIENCE = 0.5
"""By how much the accuracy kept may lie below the limit at the start; it shrinks to nothing towards the last round."""


class Hopeless:
    """Stops a training that lies so far behind its undefended twin that it will not keep what it has to.

    After a quarter of the rounds the accuracy kept, of what the twin had after as many, must not lie below the limit by
    more than half of the share of rounds that are left.

    Args:
        twins: accuracy of the undefended training after so many rounds, by seed.
        rounds: of a whole training.
        kept: accuracy to keep, in per cent of the twin's.
    """

    def __init__(self, twins: Mapping[int, Sequence[tuple[int, float]]], rounds: int, kept: float) -> None:
        self._twins = {seed: dict(curve) for seed, curve in twins.items()}
        self._rounds, self._kept = rounds, kept / 100

    def __call__(self, defence: str, seed: int, rounds: Sequence[RoundRecord]) -> str:
        """Return why there should be no further round; empty if there should."""
        measured = [(record.round + 1, record.accuracy) for record in rounds if record.accuracy is not None]
        if defence == "none" or not measured:
            return ""
        number, accuracy = measured[-1]
        twin = self._twins.get(seed, {}).get(number)
        played = number / self._rounds
        if not twin or played < _FIRST or accuracy / twin >= self._kept - _PATIENCE * (1 - played):
            return ""
        return (
            f"stopped after {number} of {self._rounds} rounds with {accuracy:.1%}, where the undefended twin had "
            f"{twin:.1%}"
        )
