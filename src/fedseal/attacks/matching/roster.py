"""Which lanes are running, and where those ended that are not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.attacks.matching.problem import Lanes


@dataclass(frozen=True)
class Solution:
    """Where the lanes ended.

    Attributes:
        z: final variables [L, D].
        values: their objectives [L]; not finite where a lane diverged.
        lanes: the lanes' constants at the end, as labels may have changed.
        steps: taken by each lane, [L].
    """

    z: Tensor
    values: Tensor
    lanes: Lanes
    steps: Tensor


class Roster:
    """The lanes of one run, all running at first.

    Args:
        z: starting variables [L, D].
        lanes: the lanes' constants.
    """

    def __init__(self, z: Tensor, lanes: Lanes) -> None:
        self._z = z.clone()
        self._values = z.new_full((len(z),), float("nan"))
        self._steps = torch.zeros(len(z), dtype=torch.long, device=z.device)
        self._labels = None if lanes.labels is None else lanes.labels.clone()
        self.lanes = lanes
        self.active = torch.arange(len(z), device=z.device)

    def record(self, step: int, z: Tensor, values: Tensor, lanes: Lanes) -> tuple[Tensor, Tensor]:
        """Store the running lanes' state; return all lanes' (values, z)."""
        self._z[self.active], self._values[self.active] = z, values
        self._steps[self.active] = step
        if self._labels is not None and lanes.labels is not None:
            self._labels[self.active] = lanes.labels
        return self._values, self._z

    def keep(self, indices: Tensor) -> None:
        """Let all running lanes go but those at `indices`."""
        self.active = self.active[indices]

    def solution(self) -> Solution:
        """Return what was recorded last."""
        return Solution(self._z, self._values, Lanes(self.lanes.observed, self._labels), self._steps)
