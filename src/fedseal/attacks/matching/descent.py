"""The loop around an optimiser's step: rates, look-ahead, noise, annealing, relabelling, and lanes that stop early.

Lanes share every evaluation and nothing else: each has its own source of noise, and stops by its own objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluate, Evaluation
from fedseal.attacks.matching.problem import Lanes
from fedseal.attacks.matching.roster import Roster, Solution
from fedseal.attacks.matching.schedules import Schedule, anneal_at, learning_rate_at
from fedseal.attacks.matching.steps import Ground, Step, Walk

Report: TypeAlias = Callable[[int, Tensor, Tensor], None]
"""Told (iteration, values [L], z [L, D]) of all lanes now and then."""


@dataclass(frozen=True)
class LookAhead:
    """FedLeak's gradient regularisation: blend the gradient here with the one a step away (Sec. 4.3, Eq. 13).

    Attributes:
        blend: weight of the gradient ahead; 0 is none.
        toward: where "ahead" is: down the gradient (App. D, the artifact), or up it (Eq. 13 as printed).
        length: of the step, as a multiple of one Adam step, learning rate x sqrt(D).
        by_optimiser: take a real optimiser step instead, as the artifact does; its memory then advances twice.
        fixed_selection: compare the same coordinates ahead as here (Algorithm 1) or choose anew (the artifact).
    """

    blend: float = 0.7
    toward: Literal["descent", "ascent"] = "descent"
    length: float = 1.0
    by_optimiser: bool = False
    fixed_selection: bool = True

    def point(self, z: Tensor, here: Evaluation, rate: float, walk: Walk, ground: Ground) -> Tensor:
        """Return the point ahead of z [L, D]."""
        if self.by_optimiser:
            return walk.move(z, here, rate, ground).z
        sign = -1.0 if self.toward == "descent" else 1.0
        length = self.length * rate * math.sqrt(z.shape[1])
        norms: Tensor = here.gradients.norm(dim=1, keepdim=True).clamp(min=1e-30)
        return z + sign * length * here.gradients / norms


@dataclass(frozen=True)
class Surroundings:
    """What an attack lets a descent call.

    Attributes:
        report: told of progress.
        report_every: steps between reports.
        sources: of random numbers, one per lane.
        project: keeps z [L, D] where it may be, after every step; None where it may be anywhere.
        relabel: returns lanes with labels re-estimated at z; None leaves them.
        relabel_every: steps between those; 0 never.
        look: told how far the run is, z [L, D] and lanes before every `look_every`-th step, as a prior may want to be.
        look_every: steps between those.
    """

    report: Report
    report_every: int
    sources: Sequence[torch.Generator]
    project: Callable[[Tensor], Tensor] | None = None
    relabel: Callable[[Tensor, Lanes], Lanes] | None = None
    relabel_every: int = 0
    look: Callable[[float, Tensor, Lanes], None] | None = None
    look_every: int = 1


@dataclass(frozen=True)
class Descent:
    """Minimises all lanes at once by repeating a step.

    Attributes:
        step: the optimiser.
        lr: learning rate.
        schedule, warmup: see `learning_rate_at`.
        look_ahead: see `LookAhead`.
        pixel_noise: Gaussian noise added after each step, as a multiple of the learning rate (GradInversion: 0.2).
        anneal: first weight of the matching distance, growing to 1 (the Bayes attack); 1 is none.
        patience: a lane stops when, late in a run, its objective gained less than this share in the last tenth of it;
            0 never stops early.
    """

    step: Step
    lr: float = 1.0
    schedule: Schedule = "constant"
    warmup: int = 0
    look_ahead: LookAhead | None = None
    pixel_noise: float = 0.0
    anneal: float = 1.0
    patience: float = 0.0

    def minimise(self, evaluate: Evaluate, z: Tensor, lanes: Lanes, iterations: int, around: Surroundings) -> Solution:
        """Take at most `iterations` steps from z [L, D]."""
        run = _Run(self, evaluate, Roster(z, lanes), z, iterations, around)
        for step in range(iterations):
            if not run.advance(step):
                break
        return run.finish()


class _Run:
    """One descent under way: the running lanes, where they are, and what is known there."""

    def __init__(
        self,
        descent: Descent,
        evaluate: Evaluate,
        roster: Roster,
        z: Tensor,
        iterations: int,
        around: Surroundings,
    ) -> None:
        self._descent = descent
        self._evaluate = evaluate
        self._roster = roster
        self._iterations = iterations
        self._around = around
        self._walk = descent.step.begin(z)
        self._stopping = _Stopping(descent.patience, iterations, z)
        self._z, self._lanes = z, roster.lanes
        self._here: Evaluation | None = None
        self._finished: Tensor | None = None

    def advance(self, step: int) -> bool:
        """Make step number `step`; return whether any lane still runs."""
        descent, around = self._descent, self._around
        relative_rate = learning_rate_at(descent.schedule, step, self._iterations, descent.warmup)
        rate = descent.lr * relative_rate
        ground = Ground(self._evaluate, self._lanes, anneal_at(descent.anneal, step / self._iterations))
        if around.look is not None and step % around.look_every == 0:
            around.look(step / self._iterations, self._z, self._lanes)
            self._here = None
        here = ground.at(self._z) if self._here is None else self._here
        here = self._let_go(step, here, self._finished)
        if not len(self._z):
            return False
        if step % around.report_every == 0:
            around.report(step, *self._roster.record(step, self._z, here.values, self._lanes))
        here = self._let_go(step, here, self._stopping.finished(step, relative_rate, here.values))
        if not len(self._z):
            return False
        ground = replace(ground, lanes=self._lanes)
        if descent.look_ahead is not None:
            here = self._blended(descent.look_ahead, here, rate, ground)
        moved = self._walk.move(self._z, here, rate, ground)
        self._z, self._here, self._finished = moved.z, moved.here, moved.finished
        self._disturb(step, rate)
        return True

    def finish(self) -> Solution:
        """Return where the lanes are."""
        roster = self._roster
        if len(roster.active):
            here = self._evaluate(self._z, self._lanes) if self._here is None else self._here
            roster.record(self._iterations, self._z, here.values, self._lanes)
        solution = roster.solution()
        self._around.report(self._iterations, solution.values, solution.z)
        return solution

    def _let_go(self, step: int, here: Evaluation, finished: Tensor | None) -> Evaluation:
        """Record the finished lanes [L] and go on without them; return what is known of the others."""
        if finished is None or not bool(finished.any()):
            return here
        self._roster.record(step, self._z, here.values, self._lanes)
        keep = (~finished).nonzero().squeeze(1)
        self._roster.keep(keep)
        self._walk.keep(keep)
        self._stopping.keep(keep)
        self._z, self._lanes = self._z[keep], self._lanes.pick(keep)
        return here.pick(keep)

    def _blended(self, look: LookAhead, here: Evaluation, rate: float, ground: Ground) -> Evaluation:
        """Return what is known here with the gradient blended with that ahead."""
        ahead = look.point(self._z, here, rate, self._walk, ground)
        if self._around.project is not None:
            ahead = self._around.project(ahead)
        there = ground.at(ahead, selections=here.selections if look.fixed_selection else None)
        return replace(here, gradients=torch.lerp(here.gradients, there.gradients, look.blend))

    def _disturb(self, step: int, rate: float) -> None:
        """Do to the lanes what is done between steps; what was known of a place they leave is forgotten."""
        descent, around = self._descent, self._around
        if descent.pixel_noise:
            self._z = self._z + descent.pixel_noise * rate * self._noise()
        if around.project is not None:
            self._z = around.project(self._z)
        relabel = around.relabel if around.relabel_every and (step + 1) % around.relabel_every == 0 else None
        if relabel is not None:
            self._lanes = relabel(self._z, self._lanes)
        if descent.pixel_noise or around.project is not None or relabel is not None or descent.anneal != 1:
            self._here = None

    def _noise(self) -> Tensor:
        """Draw N(0, 1) for the running lanes, each from its own source."""
        size = self._z.shape[1]
        sources = [self._around.sources[lane] for lane in self._roster.active.tolist()]
        drawn = [torch.randn(size, generator=source, dtype=self._z.dtype, device=source.device) for source in sources]
        return torch.stack(drawn).to(self._z.device)


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
