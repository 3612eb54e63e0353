"""What an optimiser asks of a problem: values and gradients of many lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedseal.attacks.matching.problem import Lanes


@dataclass(frozen=True)
class Evaluation:
    """Values [L], gradients [L, D] and the selections [L, N] of compared coordinates (or [L, 0])."""

    values: Tensor
    gradients: Tensor
    selections: Tensor

    def pick(self, indices: Tensor) -> Evaluation:
        """Return some of the lanes."""
        return Evaluation(self.values[indices], self.gradients[indices], self.selections[indices])


class Evaluate(Protocol):
    """Evaluates lanes at z [L, D]."""

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate; `weight` multiplies the matching distance, `selections` fixes the compared coordinates."""
