"""What an optimiser asks of a problem: values and gradients of many lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
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


def lane_by_lane(
    evaluate: Callable[[Tensor, Tensor, Tensor | None, float, Tensor | None], tuple[Tensor, Tensor, Tensor]],
    z: Tensor,
    lanes: Lanes,
    weight: float,
    selections: Tensor | None,
) -> Evaluation:
    """Evaluate the lanes in turn, each in memory of its own: where a vector lies decides a product's last bits."""
    results = [
        evaluate(
            z[lane].detach().clone(),
            lanes.rows[lane],
            None if lanes.labels is None else lanes.labels[lane],
            weight,
            None if selections is None or selections.shape[1] == 0 else selections[lane],
        )
        for lane in range(len(z))
    ]
    values, gradients, chosen = (torch.stack(parts) for parts in zip(*results, strict=True))
    return Evaluation(values, gradients, chosen)
