"""Optimisers that move all lanes at once and let each finish on its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.attacks.matching.problem import Evaluate, Lanes

Schedule: TypeAlias = Literal["constant", "steps", "cosine"]
Report: TypeAlias = Callable[[int, Tensor, Tensor], None]
"""Told (iteration, objectives [L], z [L, D]) now and then."""


@dataclass(frozen=True)
class Solution:
    """Where the lanes ended.

    Attributes:
        z: final variables [L, D].
        values: their objectives [L]; not finite where a lane diverged.
        iterations: steps taken.
    """

    z: Tensor
    values: Tensor
    iterations: int


def learning_rate_at(schedule: Schedule, step: int, total: int) -> float:
    """Return the factor on the learning rate at `step` of `total`.

    `steps` multiplies by 0.1 at 3/8, 5/8 and 7/8 of the run, as Inverting Gradients does; `cosine` falls to zero.
    """
    if schedule == "steps":
        return 0.1 ** sum(step >= math.floor(total * eighths / 8) for eighths in (3, 5, 7))
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / total))
    return 1.0


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015), optionally on the sign of the gradient, with a box projected after each step.

    Attributes:
        lr: learning rate.
        schedule: see `learning_rate_at`.
        signed: replace the gradient by its sign, as Inverting Gradients does.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
    """

    lr: float = 0.1
    schedule: Schedule = "steps"
    signed: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def minimise(
        self,
        evaluate: Evaluate,
        z: Tensor,
        lanes: Lanes,
        *,
        iterations: int,
        project: Callable[[Tensor], Tensor],
        report: Report,
        report_every: int,
    ) -> Solution:
        """Take `iterations` steps from z [L, D]."""
        first, second = torch.zeros_like(z), torch.zeros_like(z)
        beta1, beta2 = self.betas
        for step in range(iterations):
            values, gradient = evaluate(z, lanes)
            if step % report_every == 0:
                report(step, values, z)
            if self.signed:
                gradient = gradient.sign()
            first = first.lerp(gradient, 1 - beta1)
            second = second.lerp(gradient.square(), 1 - beta2)
            rate = self.lr * learning_rate_at(self.schedule, step, iterations)
            corrected = second.div(1 - beta2 ** (step + 1)).sqrt_().add_(self.eps)
            z = project(z.addcdiv(first, corrected, value=-rate / (1 - beta1 ** (step + 1))))
        values, _ = evaluate(z, lanes)
        report(iterations, values, z)
        return Solution(z, values, iterations)


@dataclass
class _Memory:
    """The last steps and gradient changes of every lane, newest last; a zero pair has no effect."""

    size: int
    steps: list[Tensor] = field(default_factory=list)
    changes: list[Tensor] = field(default_factory=list)
    inverse_curvatures: list[Tensor] = field(default_factory=list)
    scale: Tensor | None = None

    def add(self, step: Tensor, change: Tensor) -> None:
        curvature = (step * change).sum(1)
        useful = curvature > 1e-10 * step.norm(dim=1) * change.norm(dim=1)
        inverse = torch.where(useful, 1 / curvature.where(useful, curvature.new_ones(())), 0)
        self.steps.append(step)
        self.changes.append(change)
        self.inverse_curvatures.append(inverse)
        fresh = curvature / change.square().sum(1).clamp(min=1e-30)
        previous = torch.ones_like(fresh) if self.scale is None else self.scale
        self.scale = torch.where(useful, fresh, previous)
        for history in (self.steps, self.changes, self.inverse_curvatures):
            del history[: -self.size]

    def direction(self, gradient: Tensor) -> Tensor:
        """Return minus the inverse-Hessian estimate times the gradient, by the two-loop recursion."""
        q = -gradient
        if self.scale is None:
            return q / gradient.abs().sum(1, keepdim=True).clamp(min=1.0)
        weights: list[Tensor] = []
        pairs = list(zip(self.steps, self.changes, self.inverse_curvatures, strict=True))
        for step, change, inverse in reversed(pairs):
            weight = (inverse * (step * q).sum(1)).unsqueeze(1)
            q = q - weight * change
            weights.append(weight)
        q = q * self.scale.unsqueeze(1)
        for (step, change, inverse), weight in zip(pairs, reversed(weights), strict=True):
            q = q + step * (weight - (inverse * (change * q).sum(1)).unsqueeze(1))
        return q

    def pick(self, indices: Tensor) -> None:
        self.steps = [t[indices] for t in self.steps]
        self.changes = [t[indices] for t in self.changes]
        self.inverse_curvatures = [t[indices] for t in self.inverse_curvatures]
        self.scale = None if self.scale is None else self.scale[indices]


@dataclass(frozen=True)
class LBFGS:
    """Limited-memory BFGS (Liu and Nocedal 1989), one per lane, sharing every evaluation.

    The line search brackets a point that satisfies the weak Wolfe conditions (Lewis and Overton 2013) with cubic
    interpolation inside the bracket; lanes that have found theirs are not evaluated again. A lane is finished when its
    objective or gradient is small, or when no step improves it; finished lanes leave the batch.

    Attributes:
        history: steps remembered.
        tolerance: a lane stops below this objective.
        searches: evaluations per line search at most.
    """

    history: int = 50
    tolerance: float = 1e-12
    searches: int = 15

    def minimise(
        self,
        evaluate: Evaluate,
        z: Tensor,
        lanes: Lanes,
        *,
        iterations: int,
        project: Callable[[Tensor], Tensor],
        report: Report,
        report_every: int,
    ) -> Solution:
        """Take at most `iterations` steps from z [L, D]; the box is not enforced, as in DLG."""
        values, gradient = evaluate(z, lanes)
        final_z, final_values = z.clone(), values.clone()
        active = torch.arange(len(z), device=z.device)
        memory = _Memory(self.history)
        taken = 0
        for step in range(iterations):
            if step % report_every == 0:
                final_z[active], final_values[active] = z, values
                report(step, final_values, final_z)
            direction = memory.direction(gradient)
            slope = (direction * gradient).sum(1)
            bad = ~(slope < 0)
            direction[bad], slope[bad] = -gradient[bad], -gradient[bad].square().sum(1)
            found = self._search(evaluate, z, lanes, values, gradient, direction, slope)
            memory.add(found.z - z, found.gradient - gradient)
            stuck = ~(found.values < values)
            z, values, gradient = found.z, found.values, found.gradient
            taken = step + 1
            finished = stuck | (values <= self.tolerance) | ~torch.isfinite(values)
            if bool(finished.any()):
                final_z[active], final_values[active] = z, values
                keep = (~finished).nonzero().squeeze(1)
                if len(keep) == 0:
                    active = active[keep]
                    break
                active, z, values, gradient = active[keep], z[keep], values[keep], gradient[keep]
                lanes = lanes.pick(keep)
                memory.pick(keep)
        final_z[active], final_values[active] = z[: len(active)], values[: len(active)]
        report(iterations, final_values, final_z)
        return Solution(final_z, final_values, taken)

    def _search(
        self,
        evaluate: Evaluate,
        z: Tensor,
        lanes: Lanes,
        values: Tensor,
        gradient: Tensor,
        direction: Tensor,
        slope: Tensor,
    ) -> _Point:
        point = _Point(z.clone(), values.clone(), gradient.clone())
        low, high = torch.zeros_like(values), torch.full_like(values, math.inf)
        low_value, low_slope = values.clone(), slope.clone()
        high_value, high_slope = torch.zeros_like(values), torch.zeros_like(values)
        length = torch.ones_like(values)
        todo = torch.arange(len(z), device=z.device)
        for _ in range(self.searches):
            trial_z = z[todo] + length[todo].unsqueeze(1) * direction[todo]
            trial_values, trial_gradient = evaluate(trial_z, lanes if len(todo) == len(z) else lanes.pick(todo))
            trial_slope = (trial_gradient * direction[todo]).sum(1)
            too_far = ~(trial_values <= values[todo] + 1e-4 * length[todo] * slope[todo])
            too_short = ~too_far & (trial_slope < 0.9 * slope[todo])
            better = trial_values < point.values[todo]
            chosen = todo[better]
            point.z[chosen], point.values[chosen] = trial_z[better], trial_values[better]
            point.gradient[chosen] = trial_gradient[better]
            far, short = todo[too_far], todo[too_short]
            high[far], high_value[far], high_slope[far] = length[far], trial_values[too_far], trial_slope[too_far]
            low[short], low_value[short] = length[short], trial_values[too_short]
            low_slope[short] = trial_slope[too_short]
            todo = todo[too_far | too_short]
            if len(todo) == 0:
                break
            inside = cubic_minimum(
                low[todo], low_value[todo], low_slope[todo], high[todo], high_value[todo], high_slope[todo]
            )
            length[todo] = torch.where(torch.isinf(high[todo]), 2.5 * length[todo], inside)
        return point


@dataclass
class _Point:
    z: Tensor
    values: Tensor
    gradient: Tensor


def cubic_minimum(
    low: Tensor, low_value: Tensor, low_slope: Tensor, high: Tensor, high_value: Tensor, high_slope: Tensor
) -> Tensor:
    """Return the minimum of the cubic through two points with slopes, kept inside the middle 80 % of the bracket."""
    width = high - low
    d1 = low_slope + high_slope - 3 * (low_value - high_value) / (low - high)
    d2 = (d1.square() - low_slope * high_slope).clamp(min=0).sqrt()
    minimum = high - width * ((high_slope + d2 - d1) / (high_slope - low_slope + 2 * d2))
    middle = low + 0.5 * width
    minimum = torch.where(torch.isfinite(minimum), minimum, middle)
    return torch.minimum(torch.maximum(minimum, low + 0.1 * width), low + 0.9 * width)


Optimiser: TypeAlias = Adam | LBFGS
