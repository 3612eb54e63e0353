"""What a descent asks of an optimiser: to move lanes from where they are, and to remember what it needs to.

A `Step` is an optimiser's options; `begin` makes the `Walk` that holds one run's memory. The loop around it (rates,
look-ahead, noise, stopping) is `descent`, the same for every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluate, Evaluation
from fedseal.attacks.matching.problem import Lanes


@dataclass(frozen=True)
class Ground:
    """What lies before the running lanes: their objective, at a fixed weight of the matching distance.

    Attributes:
        evaluate: values and gradients.
        lanes: the running lanes' constants.
        weight: of the matching distance.
    """

    evaluate: Evaluate
    lanes: Lanes
    weight: float = 1.0

    def at(self, z: Tensor, lanes: Tensor | None = None, selections: Tensor | None = None) -> Evaluation:
        """Evaluate all running lanes at z, or those at the places `lanes` only."""
        chosen = self.lanes if lanes is None else self.lanes.pick(lanes)
        return self.evaluate(z, chosen, self.weight, selections)


@dataclass(frozen=True)
class Moved:
    """Where a step led.

    Attributes:
        z: the lanes' variables [L, D].
        here: their evaluation there, if the step made one; it saves the descent its own.
        finished: lanes [L] that cannot get further; None for none.
    """

    z: Tensor
    here: Evaluation | None = None
    finished: Tensor | None = None


class Walk(Protocol):
    """One run of an optimiser."""

    def move(self, z: Tensor, here: Evaluation, rate: float, ground: Ground) -> Moved:
        """Take one step from z [L, D], where `here` was found, at the given learning rate."""

    def keep(self, indices: Tensor) -> None:
        """Forget all lanes but those at `indices`."""


class Step(Protocol):
    """An optimiser."""

    def begin(self, z: Tensor) -> Walk:
        """Start a run from z [L, D]."""
