"""Adam for many lanes at once: plain, on signs, with look-ahead gradients, with early stopping per lane."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluate
from fedseal.attacks.matching.problem import Lanes
from fedseal.attacks.matching.schedules import Schedule, anneal_at, learning_rate_at
from fedseal.attacks.matching.solution import Hooks, Roster, Solution


@dataclass(frozen=True)
class LookAhead:
    """FedLeak's gradient regularisation: blend the gradient here with the one a step away (Sec. 4.3, Eq. 13).

    Attributes:
        blend: weight of the gradient ahead; 0 is none.
        toward: where "ahead" is: down the gradient (App. D, the artifact), or up it (Eq. 13 as printed).
        length: of the step, as a multiple of one Adam step, learning rate x sqrt(D).
        by_optimiser: take a real optimiser step instead, as the artifact does; moments then advance twice.
        fixed_selection: compare the same coordinates ahead as here (Algorithm 1) or choose anew (the artifact).
    """

    blend: float = 0.7
    toward: Literal["descent", "ascent"] = "descent"
    length: float = 1.0
    by_optimiser: bool = False
    fixed_selection: bool = True


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015) with a projection after each step.

    Attributes:
        lr: learning rate.
        schedule, warmup: see `learning_rate_at`.
        signed: replace the gradient by its sign, as Inverting Gradients does.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled, as in AdamW.
        look_ahead: see `LookAhead`.
        pixel_noise: Gaussian noise added after each step, as a multiple of the learning rate (GradInversion: 0.2).
        anneal: first weight of the matching distance, growing to 1 (the Bayes attack); 1 is none.
        patience: a lane stops when, late in a run, its objective gained less than this share in the last tenth of it;
            0 never stops early.
    """

    lr: float = 0.1
    schedule: Schedule = "steps"
    warmup: int = 0
    signed: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    look_ahead: LookAhead | None = None
    pixel_noise: float = 0.0
    anneal: float = 1.0
    patience: float = 0.0

    def minimise(self, evaluate: Evaluate, z: Tensor, lanes: Lanes, iterations: int, hooks: Hooks) -> Solution:
        """Take at most `iterations` steps from z [L, D]."""
        roster = Roster(z, lanes)
        moments = _Moments(torch.zeros_like(z), torch.zeros_like(z), 0)
        stopping = _Stopping(self.patience, iterations, z)
        for step in range(iterations):
            rate = self.lr * learning_rate_at(self.schedule, step, iterations, self.warmup)
            weight = anneal_at(self.anneal, step / iterations)
            here = evaluate(z, lanes, weight)
            if step % hooks.report_every == 0:
                hooks.report(step, *roster.record(step, z, here.values, lanes))
            finished = stopping.finished(step, rate / self.lr, here.values)
            if finished is not None and bool(finished.any()):
                roster.record(step, z, here.values, lanes)
                keep = (~finished).nonzero().squeeze(1)
                roster.keep(keep)
                if len(keep) == 0:
                    break
                z, lanes, moments, here = z[keep], lanes.pick(keep), moments.pick(keep), here.pick(keep)
                stopping.keep(keep)
            gradient = here.gradients
            if self.look_ahead is not None:
                ahead, moments = self._ahead(self.look_ahead, z, gradient, moments, rate)
                selections = here.selections if self.look_ahead.fixed_selection else None
                there = evaluate(hooks.project(ahead), lanes, weight, selections)
                gradient = torch.lerp(gradient, there.gradients, self.look_ahead.blend)
            z, moments = self._step(z, gradient, moments, rate)
            if self.pixel_noise:
                noise = torch.randn(z.shape, generator=hooks.source, dtype=z.dtype, device=hooks.source.device)
                z = z + self.pixel_noise * rate * noise.to(z.device)
            z = hooks.project(z)
            if hooks.relabel is not None and hooks.relabel_every and (step + 1) % hooks.relabel_every == 0:
                lanes = hooks.relabel(z, lanes)
        if len(roster.active):
            roster.record(iterations, z, evaluate(z, lanes).values, lanes)
        solution = roster.solution()
        hooks.report(iterations, solution.values, solution.z)
        return solution

    def _step(self, z: Tensor, gradient: Tensor, moments: _Moments, rate: float) -> tuple[Tensor, _Moments]:
        """Return z after one step, and the advanced moments."""
        if self.signed:
            gradient = gradient.sign()
        beta1, beta2 = self.betas
        first = moments.first.lerp(gradient, 1 - beta1)
        second = moments.second.lerp(gradient.square(), 1 - beta2)
        count = moments.count + 1
        corrected = second.div(1 - beta2**count).sqrt_().add_(self.eps)
        if self.weight_decay:
            z = z * (1 - rate * self.weight_decay)
        return z.addcdiv(first, corrected, value=-rate / (1 - beta1**count)), _Moments(first, second, count)

    def _ahead(
        self, look: LookAhead, z: Tensor, gradient: Tensor, moments: _Moments, rate: float
    ) -> tuple[Tensor, _Moments]:
        """Return the point ahead, and the moments after getting there."""
        if look.by_optimiser:
            return self._step(z, gradient, moments, rate)
        sign = -1.0 if look.toward == "descent" else 1.0
        length = look.length * rate * math.sqrt(z.shape[1])
        return z + sign * length * gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-30), moments


@dataclass(frozen=True)
class _Moments:
    first: Tensor
    second: Tensor
    count: int

    def pick(self, indices: Tensor) -> _Moments:
        return _Moments(self.first[indices], self.second[indices], self.count)


class _Stopping:
    """Compares each lane's objective with what it was a tenth of the run ago, once the learning rate is low."""

    def __init__(self, patience: float, iterations: int, z: Tensor) -> None:
        self._patience = patience
        self._every = max(1, iterations // 10)
        self._before = z.new_full((len(z),), math.inf)
        self._armed = False

    def finished(self, step: int, relative_rate: float, values: Tensor) -> Tensor | None:
        if self._patience <= 0 or step % self._every:
            return None
        still = self._before - values <= self._patience * values.abs()
        self._before = values
        was_armed, self._armed = self._armed, relative_rate <= 0.0101
        return still if was_armed and self._armed else None

    def keep(self, indices: Tensor) -> None:
        self._before = self._before[indices]
