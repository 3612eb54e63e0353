"""Limited-memory BFGS for many lanes that share every evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluation
from fedseal.attacks.matching.steps import Ground, Moved

_ARMIJO = 1e-4
_CURVATURE = 0.9


@dataclass(frozen=True)
class LBFGS:
    """Limited-memory BFGS (Liu and Nocedal 1989), one per lane.

    The line search brackets a point that satisfies the weak Wolfe conditions (Lewis and Overton 2013) with cubic
    interpolation inside the bracket; lanes that have found theirs are not evaluated again. A lane is finished when its
    objective is small or no step improves it.

    Attributes:
        history: steps remembered.
        tolerance: a lane stops below this objective.
        searches: evaluations per line search at most.
    """

    history: int = 50
    tolerance: float = 1e-12
    searches: int = 15

    def begin(self, z: Tensor) -> LBFGSWalk:
        """Start without any memory of curvature."""
        return LBFGSWalk(self)


class LBFGSWalk:
    """The curvature one run has seen.

    Args:
        options: of the step.
    """

    def __init__(self, options: LBFGS) -> None:
        self._options = options
        self._memory = _Memory(options.history)
        self._before: _Point | None = None

    def move(self, z: Tensor, here: Evaluation, rate: float, ground: Ground) -> Moved:
        """Search along the quasi-Newton direction, first at `rate` times its length."""
        point = _Point(z, here.values, here.gradients)
        if self._before is not None:
            self._memory.add(point.z - self._before.z, point.gradients - self._before.gradients)
        self._before = point
        found = self._search(ground, point, rate)
        finished = ~(found.values < point.values) | (found.values <= self._options.tolerance)
        there = Evaluation(found.values, found.gradients, here.selections)
        return Moved(found.z, there, finished)

    def keep(self, indices: Tensor) -> None:
        """Forget the other lanes' curvature."""
        self._memory.pick(indices)
        self._before = None if self._before is None else self._before.pick(indices)

    def _search(self, ground: Ground, start: _Point, rate: float) -> _Point:
        """Return the best point found along each lane's direction; the start itself where none is better."""
        direction = self._memory.direction(start.gradients)
        slope = (direction * start.gradients).sum(1)
        uphill = ~(slope < 0)
        direction[uphill] = -start.gradients[uphill]
        slope[uphill] = -start.gradients[uphill].square().sum(1)
        best = start.copy()
        low = _Edge(torch.zeros_like(slope), start.values.clone(), slope.clone())
        high = _Edge(torch.full_like(slope, math.inf), torch.zeros_like(slope), torch.zeros_like(slope))
        length = torch.full_like(slope, rate)
        todo = torch.arange(len(slope), device=slope.device)
        for _ in range(self._options.searches):
            trial_z = start.z[todo] + length[todo].unsqueeze(1) * direction[todo]
            trial = ground.at(trial_z, None if len(todo) == len(slope) else todo)
            trial_slope = (trial.gradients * direction[todo]).sum(1)
            too_far = ~(trial.values <= start.values[todo] + _ARMIJO * length[todo] * slope[todo])
            too_short = ~too_far & (trial_slope < _CURVATURE * slope[todo])
            best.improve(todo, _Point(trial_z, trial.values, trial.gradients))
            high.move(todo, too_far, length, trial.values, trial_slope)
            low.move(todo, too_short, length, trial.values, trial_slope)
            todo = todo[too_far | too_short]
            if len(todo) == 0:
                break
            inside = cubic_minimum(low.pick(todo), high.pick(todo))
            length[todo] = torch.where(torch.isinf(high.at[todo]), 2.5 * length[todo], inside)
        return best


@dataclass
class _Point:
    """Lanes' variables, values and gradients."""

    z: Tensor
    values: Tensor
    gradients: Tensor

    def copy(self) -> _Point:
        return _Point(self.z.clone(), self.values.clone(), self.gradients.clone())

    def pick(self, indices: Tensor) -> _Point:
        return _Point(self.z[indices], self.values[indices], self.gradients[indices])

    def improve(self, indices: Tensor, trial: _Point) -> None:
        """Take a trial's lanes, found at `indices`, where they are better."""
        better = trial.values < self.values[indices]
        chosen = indices[better]
        self.z[chosen], self.values[chosen] = trial.z[better], trial.values[better]
        self.gradients[chosen] = trial.gradients[better]


@dataclass
class _Edge:
    """One end of each lane's bracket: where it is, with value and slope there."""

    at: Tensor
    value: Tensor
    slope: Tensor

    def move(self, todo: Tensor, where: Tensor, length: Tensor, values: Tensor, slopes: Tensor) -> None:
        lanes = todo[where]
        self.at[lanes], self.value[lanes], self.slope[lanes] = length[lanes], values[where], slopes[where]

    def pick(self, indices: Tensor) -> _Edge:
        return _Edge(self.at[indices], self.value[indices], self.slope[indices])


def cubic_minimum(low: _Edge, high: _Edge) -> Tensor:
    """Return the minimum of the cubic through two points with slopes, kept inside the middle 80 % of the bracket."""
    width = high.at - low.at
    d1 = low.slope + high.slope - 3 * (low.value - high.value) / (low.at - high.at)
    d2 = (d1.square() - low.slope * high.slope).clamp(min=0).sqrt()
    minimum = high.at - width * ((high.slope + d2 - d1) / (high.slope - low.slope + 2 * d2))
    minimum = torch.where(torch.isfinite(minimum), minimum, low.at + 0.5 * width)
    return torch.minimum(torch.maximum(minimum, low.at + 0.1 * width), low.at + 0.9 * width)


@dataclass
class _Memory:
    """The last steps and gradient changes of every lane, newest last; a pair with zero weight has no effect."""

    size: int
    steps: list[Tensor] = field(default_factory=list)
    changes: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    scale: Tensor | None = None

    def add(self, step: Tensor, change: Tensor) -> None:
        curvature = (step * change).sum(1)
        useful = curvature > 1e-10 * step.norm(dim=1) * change.norm(dim=1)
        self.steps.append(step)
        self.changes.append(change)
        self.weights.append(torch.where(useful, 1 / curvature.where(useful, curvature.new_ones(())), 0))
        fresh = curvature / change.square().sum(1).clamp(min=1e-30)
        previous = torch.ones_like(fresh) if self.scale is None else self.scale
        self.scale = torch.where(useful, fresh, previous)
        for history in (self.steps, self.changes, self.weights):
            del history[: -self.size]

    def direction(self, gradients: Tensor) -> Tensor:
        """Return minus the inverse-Hessian estimate times the gradients [L, D], by the two-loop recursion."""
        q = -gradients
        if self.scale is None:
            return q / gradients.abs().sum(1, keepdim=True).clamp(min=1.0)
        used: list[Tensor] = []
        pairs = list(zip(self.steps, self.changes, self.weights, strict=True))
        for step, change, weight in reversed(pairs):
            used.append((weight * (step * q).sum(1)).unsqueeze(1))
            q = q - used[-1] * change
        q = q * self.scale.unsqueeze(1)
        for (step, change, weight), alpha in zip(pairs, reversed(used), strict=True):
            q = q + step * (alpha - (weight * (change * q).sum(1)).unsqueeze(1))
        return q

    def pick(self, indices: Tensor) -> None:
        self.steps = [t[indices] for t in self.steps]
        self.changes = [t[indices] for t in self.changes]
        self.weights = [t[indices] for t in self.weights]
        self.scale = None if self.scale is None else self.scale[indices]
