"""The matching engine: prepares lanes, runs an optimiser, chooses restarts by the attacker's own objective."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.attacks.labels import LabelGuess, infer_labels
from fedseal.attacks.matching.objectives import ObjectiveName
from fedseal.attacks.matching.optimisers import Optimiser
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.attacks.server_view import (
    attack_model,
    attack_parameters,
    estimated_gradient,
    image_count,
    input_normalisation,
    update_scale,
)
from fedseal.core.attack import Attack, Budget, Listener
from fedseal.core.errors import InputError, TrialError
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten

Start: TypeAlias = Literal["normal", "uniform", "zeros"]
"""How dummy inputs begin: N(0, 1) or zeros in the model's input space, or images uniform in [0, 1]."""

_REPORTS = 40


@dataclass(frozen=True)
class MatchingConfig:
    """One point of the matching family.

    Attributes:
        objective: matching term.
        tv: weight of total variation.
        start: initialisation of the dummy inputs.
        optimiser: with its learning rate and schedule.
        iterations: default number of steps.
        restarts: default number of random starts.
        boxed: whether inputs are kept in the range of images at every step.
    """

    objective: ObjectiveName
    tv: float
    start: Start
    optimiser: Optimiser
    iterations: int
    restarts: int
    boxed: bool


class MatchingAttack(Attack):
    """Attacks by matching gradients as its configuration says.

    Args:
        config: which member of the family.
    """

    needs = frozenset({"batch_size"})

    def __init__(self, config: MatchingConfig) -> None:
        self.config = config

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack observations of one model as lanes of one batch, `restarts` lanes each."""
        started = time.perf_counter()
        _refuse_mixture(observations)
        for observation in observations:
            self.check(observation)
        restarts = budget.restarts or self.config.restarts
        iterations = budget.iterations or self.config.iterations
        guesses = [self._labels(observation, seed) for observation, seed in zip(observations, seeds, strict=True)]
        problem = self._problem(observations[0])
        lanes = self._lanes(observations, guesses, restarts)
        start = torch.stack([self._start(problem, observations[0], s, r) for s in seeds for r in range(restarts)])
        trace = _Trace(problem, observations[0], listener, iterations, len(observations))
        solution = self.config.optimiser.minimise(
            problem.evaluate,
            start.to(lanes.observed),
            lanes,
            iterations=iterations,
            project=self._box(problem, observations[0]),
            report=trace,
            report_every=max(1, iterations // _REPORTS),
        )
        seconds = (time.perf_counter() - started) / len(observations)
        return [
            self._collect(problem, observations[0], solution.z, solution.values, trace, index, restarts, guess, seconds)
            for index, guess in enumerate(guesses)
        ]

    def _labels(self, observation: Observation, seed: int) -> LabelGuess | None:
        return None if _labels_are_variables(observation) else infer_labels(observation, seed)

    def _problem(self, observation: Observation) -> MatchingProblem:
        knowledge = observation.knowledge
        return MatchingProblem(
            attack_model(observation),
            attack_parameters(observation),
            input_shape=(image_count(observation), *knowledge.input_shape),
            num_classes=knowledge.num_classes,
            objective=self.config.objective,
            tv=self.config.tv,
            reduction=knowledge.loss_reduction,
            soft_labels=_labels_are_variables(observation),
            view=knowledge.defence,
            scale=update_scale(observation),
        )

    def _lanes(self, observations: Sequence[Observation], guesses: Sequence[LabelGuess | None], restarts: int) -> Lanes:
        observed = torch.stack([flatten(estimated_gradient(observation)) for observation in observations])
        if not bool(observed.abs().amax(1).gt(0).all()):
            raise InputError("an update is zero everywhere.", hint="There is nothing to match; check the client.")
        labels = [guess.labels for guess in guesses if guess is not None]
        stacked = torch.stack(labels).to(observed.device) if labels else None
        return Lanes(
            observed.repeat_interleave(restarts, 0),
            None if stacked is None else stacked.repeat_interleave(restarts, 0),
        )

    def _start(self, problem: MatchingProblem, observation: Observation, seed: int, restart: int) -> Tensor:
        source = generator(seed, "start", restart)
        if self.config.start == "uniform":
            images = torch.rand(problem.inputs_size, generator=source)
            inputs = input_normalisation(observation)(problem.inputs(images)).reshape(-1)
        elif self.config.start == "normal":
            inputs = torch.randn(problem.inputs_size, generator=source)
        else:
            inputs = torch.zeros(problem.inputs_size)
        return torch.cat([inputs, torch.randn(problem.size - problem.inputs_size, generator=source)])

    def _box(self, problem: MatchingProblem, observation: Observation) -> Callable[[Tensor], Tensor]:
        return _Projection(problem, observation) if self.config.boxed else _no_projection

    def _collect(
        self,
        problem: MatchingProblem,
        observation: Observation,
        z: Tensor,
        values: Tensor,
        trace: _Trace,
        index: int,
        restarts: int,
        guess: LabelGuess | None,
        seconds: float,
    ) -> Reconstruction:
        """Choose the restart with the least objective; diverged ones are discarded and counted."""
        own = values[index * restarts : (index + 1) * restarts]
        finite = torch.isfinite(own)
        if not bool(finite.any()):
            raise TrialError(
                f"all {restarts} start(s) of the attack diverged.", hint="Lower its learning rate, or add restarts."
            )
        best = index * restarts + int(own.where(finite, own.new_full((), float("inf"))).argmin())
        discarded = restarts - int(finite.sum())
        notes = guess.notes if guess is not None else ()
        if discarded:
            notes = (*notes, f"{discarded} of {restarts} starts diverged and were discarded")
        return Reconstruction(
            to_images(problem, observation, z[best]).detach(),
            guess.labels if guess is not None else problem.labels(z[best]),
            float(values[best]),
            trace.of_lane(best),
            seconds,
            notes,
        )


def to_images(problem: MatchingProblem, observation: Observation, z: Tensor) -> Tensor:
    """Return the images [..., B, C, H, W] in [0, 1] that variables z [..., D] stand for."""
    return input_normalisation(observation).undo(problem.inputs(z)).clamp(0, 1)


class _Projection:
    """Clamps inputs to what images in [0, 1] can become; label logits are left alone."""

    def __init__(self, problem: MatchingProblem, observation: Observation) -> None:
        shape = observation.knowledge.input_shape
        normalisation = input_normalisation(observation)
        like = next(iter(attack_parameters(observation).values()))
        count = problem.inputs_size // (shape[0] * shape[1] * shape[2])
        self._low = self._edge(normalisation(like.new_zeros(shape)), count, problem, -float("inf"))
        self._high = self._edge(normalisation(like.new_ones(shape)), count, problem, float("inf"))

    @staticmethod
    def _edge(inputs: Tensor, count: int, problem: MatchingProblem, free: float) -> Tensor:
        pixels = inputs.reshape(-1).repeat(count)
        return torch.cat([pixels, pixels.new_full((problem.size - len(pixels),), free)])

    def __call__(self, z: Tensor) -> Tensor:
        return torch.clamp(z, self._low, self._high)


def _no_projection(z: Tensor) -> Tensor:
    return z


class _Trace:
    """Keeps the objectives over time and tells the listener how the images look."""

    def __init__(
        self,
        problem: MatchingProblem,
        observation: Observation,
        listener: Listener | None,
        iterations: int,
        targets: int,
    ) -> None:
        self._problem = problem
        self._observation = observation
        self._listener = listener
        self._iterations = iterations
        self._targets = targets
        self._steps: list[int] = []
        self._values: list[Tensor] = []

    def __call__(self, step: int, values: Tensor, z: Tensor) -> None:
        self._steps.append(step)
        self._values.append(values.detach().clone())
        if self._listener is not None:
            first_restarts = z[:: len(z) // self._targets]
            images = to_images(self._problem, self._observation, first_restarts.detach())
            self._listener(step / self._iterations, images)

    def of_lane(self, lane: int) -> tuple[tuple[int, float], ...]:
        return tuple((step, float(values[lane])) for step, values in zip(self._steps, self._values, strict=True))


def _labels_are_variables(observation: Observation) -> bool:
    return observation.knowledge.labels is None and observation.knowledge.label_rule == "unknown"


def _refuse_mixture(observations: Sequence[Observation]) -> None:
    first = observations[0]
    if any(o.model is not first.model or o.update.kind != first.update.kind for o in observations[1:]):
        raise InputError("observations attacked together must come from one model and be of one kind.")
