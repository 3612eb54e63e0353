"""What optimisers share: their contract, and where lanes end up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluate
from fedseal.attacks.matching.problem import Lanes

Report: TypeAlias = Callable[[int, Tensor, Tensor], None]
"""Told (iteration, values [L], z [L, D]) now and then."""


@dataclass(frozen=True)
class Hooks:
    """What the engine lets an optimiser call.

    Attributes:
        project: keeps z [L, D] where it may be; called after every step.
        report: told of progress.
        report_every: steps between reports.
        relabel: returns lanes with labels re-estimated at z; None leaves them.
        relabel_every: steps between those.
        source: of random numbers, for optimisers that add noise.
    """

    project: Callable[[Tensor], Tensor]
    report: Report
    report_every: int
    source: torch.Generator
    relabel: Callable[[Tensor, Lanes], Lanes] | None = None
    relabel_every: int = 0


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


class Optimiser(Protocol):
    """Minimises all lanes at once."""

    def minimise(self, evaluate: Evaluate, z: Tensor, lanes: Lanes, iterations: int, hooks: Hooks) -> Solution:
        """Take at most `iterations` steps from z [L, D]."""


class Roster:
    """Which lanes are still running, and the results of those that are not.

    Args:
        z: starting variables [L, D].
        lanes: the lanes' constants.
    """

    def __init__(self, z: Tensor, lanes: Lanes) -> None:
        self._z = z.clone()
        self._values = z.new_full((len(z),), float("nan"))
        self._steps = torch.zeros(len(z), dtype=torch.long, device=z.device)
        self._labels = None if lanes.labels is None else lanes.labels.clone()
        self._observed = lanes.observed
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
        return Solution(self._z, self._values, Lanes(self._observed, self._labels), self._steps)
