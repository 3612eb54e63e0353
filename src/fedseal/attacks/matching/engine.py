"""The matching engine: prepares lanes, runs an optimiser, chooses restarts by the attacker's own objective."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.attacks.labels import LabelGuess, infer_labels, refine_labels
from fedseal.attacks.matching.derivatives import SecondOrder, choose_derivatives
from fedseal.attacks.matching.evaluation import Evaluate
from fedseal.attacks.matching.groups import Consensus, GroupConsistency
from fedseal.attacks.matching.lbfgs import LBFGS
from fedseal.attacks.matching.objectives import Objective, ObjectiveFactory
from fedseal.attacks.matching.parameterisation import DeepImagePrior, Parameterisation, Pixels
from fedseal.attacks.matching.priors import Priors, Statistics
from fedseal.attacks.matching.problem import Lanes, MatchingProblem, Unroll
from fedseal.attacks.matching.solution import Hooks, Optimiser, Solution
from fedseal.attacks.reading import (
    attack_model,
    attack_parameters,
    estimated_gradient,
    image_count,
    input_normalisation,
    update_scale,
)
from fedseal.core.attack import Attack, Budget, Caveat, Listener
from fedseal.core.errors import CapabilityError, InputError, TrialError, UsageError
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten

Start: TypeAlias = Literal["normal", "uniform", "zeros"]
"""How dummy inputs begin: N(0, 1) or zeros in the model's input space, or images uniform in [0, 1]."""

LabelMode: TypeAlias = Literal["fixed", "joint", "free"]
"""Labels during matching: as given or inferred; optimised from there; or optimised from random logits (DLG)."""

LocalSteps: TypeAlias = Literal["average", "unroll"]
"""A weight change is read as a mean gradient, or its local steps are simulated one by one."""

_KINKS = Caveat(
    "ReLU with L-BFGS",
    "needs a twice differentiable model; ReLU and max-pooling have kinks, so it will look weaker than attackers are.",
    "Judge this model by attacks that use Adam, such as `ig`.",
)
_REPORTS = 40
_CONFIDENT_LOGIT = 10.0


@dataclass(frozen=True)
class MatchingConfig:
    """One point of the matching family.

    Attributes:
        objective: matching distance, given what is known of the defence's noise.
        priors: added to it.
        optimiser: with its learning rate and schedule.
        iterations: default number of steps.
        restarts: default number of random starts.
        start: initialisation of the dummy inputs.
        boxed: whether inputs are kept in the range of images at every step.
        labels: see `LabelMode`.
        relabel_every: re-estimate inferred labels from the current images every so many steps; 0 never.
        local_steps: see `LocalSteps`.
        consensus, group_weight: group consistency between restarts.
        generator_channels: optimise an untrained generator of this width instead of pixels; 0 for pixels.
        median: side of a median filter on the result; 0 for none.
        second_order: how second-order products are computed.
    """

    objective: Objective | ObjectiveFactory
    priors: Priors
    optimiser: Optimiser
    iterations: int
    restarts: int = 1
    start: Start = "normal"
    boxed: bool = True
    labels: LabelMode = "fixed"
    relabel_every: int = 0
    local_steps: LocalSteps = "average"
    consensus: Consensus = "none"
    group_weight: float = 0.0
    generator_channels: int = 0
    median: int = 0
    second_order: SecondOrder = "auto"

    def __post_init__(self) -> None:
        for option in ("iterations", "restarts"):
            if getattr(self, option) < 1:
                raise UsageError(f"{option} must be at least 1, got {getattr(self, option)}.")
        if self.median < 0 or (self.median and self.median % 2 == 0):
            raise UsageError(f"median must be 0 or an odd number of pixels, got {self.median}.")
        if self.relabel_every < 0 or self.group_weight < 0 or self.generator_channels < 0:
            raise UsageError("relabel_every, group_weight and generator_channels cannot be negative.")


class MatchingAttack(Attack):
    """Attacks by matching gradients as its configuration says.

    Args:
        config: which member of the family.
    """

    info = Info("match the gradient", needs=("batch_size",))

    def __init__(self, config: MatchingConfig) -> None:
        self.config = config

    def caveats(self, model: nn.Module) -> tuple[Caveat, ...]:
        """Say that L-BFGS, which takes curvature for granted, is led astray by kinks."""
        kinked = any(isinstance(module, nn.ReLU | nn.LeakyReLU | nn.MaxPool2d) for module in model.modules())
        return (_KINKS,) if kinked and isinstance(self.config.optimiser, LBFGS) else ()

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack observations of one model as lanes of one batch, `restarts` consecutive lanes each."""
        if len(observations) > 1 and any(_is_personal(observation) for observation in observations):
            alone = zip(observations, seeds, strict=True)
            return [self.run_many([observation], budget, [seed])[0] for observation, seed in alone]
        started = time.perf_counter()
        _refuse_mixture(observations)
        for observation in observations:
            self.check(observation)
        restarts = budget.restarts or self.config.restarts
        iterations = budget.iterations or self.config.iterations
        first = observations[0]
        guesses = [self._guess(observation, seed) for observation, seed in zip(observations, seeds, strict=True)]
        problem = self._problem(first, seeds[0])
        lanes = self._lanes(problem, observations, guesses, restarts)
        starts = [
            self._start(problem, guess, seed, restart)
            for guess, seed in zip(guesses, seeds, strict=True)
            for restart in range(restarts)
        ]
        z = torch.stack(starts).to(lanes.observed)
        trace = _Trace(problem, first, listener, iterations, restarts)
        solution = self.config.optimiser.minimise(
            self._evaluation(problem, z, lanes, restarts),
            z,
            lanes,
            iterations,
            Hooks(
                project=_Box(problem, first) if self.config.boxed and not self.config.generator_channels else _anywhere,
                report=trace,
                report_every=max(1, iterations // _REPORTS),
                source=generator(seeds[0], "optimiser"),
                relabel=None if problem.soft_labels or first.knowledge.labels is not None else _Relabel(problem, first),
                relabel_every=self.config.relabel_every,
            ),
        )
        seconds = (time.perf_counter() - started) / len(observations)
        return [
            self._collect(problem, first, solution, trace, target * restarts, restarts, guess, seconds)
            for target, guess in enumerate(guesses)
        ]

    def _guess(self, observation: Observation, seed: int) -> LabelGuess | None:
        """Return the labels to start from; None when they start from nothing."""
        free = observation.knowledge.labels is None and observation.knowledge.label_rule == "unknown"
        return None if free or self.config.labels == "free" else infer_labels(observation, seed)

    def _problem(self, observation: Observation, seed: int) -> MatchingProblem:
        knowledge = observation.knowledge
        config = self.config
        law = None if knowledge.defence is None else knowledge.defence.noise
        free = knowledge.labels is None and knowledge.label_rule == "unknown"
        return MatchingProblem(
            attack_model(observation),
            attack_parameters(observation),
            parameterisation=self._parameterisation(observation, seed),
            num_classes=knowledge.num_classes,
            objective=config.objective(law) if callable(config.objective) else config.objective,
            priors=config.priors,
            statistics=_known_statistics(observation, config.priors),
            reduction=knowledge.loss_reduction,
            soft_labels=free or config.labels != "fixed",
            view=knowledge.defence,
            scale=update_scale(observation),
            clients=knowledge.clients or 1,
            normalisation=input_normalisation(observation),
            unroll=_unroll(observation, config.local_steps),
        )

    def _parameterisation(self, observation: Observation, seed: int) -> Parameterisation:
        shape = (image_count(observation), *observation.knowledge.input_shape)
        normalisation = input_normalisation(observation)
        if self.config.generator_channels:
            return DeepImagePrior(shape, normalisation, self.config.generator_channels, seed)

        def draw(size: torch.Size, source: torch.Generator) -> Tensor:
            if self.config.start == "uniform":
                return normalisation(torch.rand(size, generator=source))
            return torch.randn(size, generator=source) if self.config.start == "normal" else torch.zeros(size)

        return Pixels(shape, draw)

    def _lanes(
        self,
        problem: MatchingProblem,
        observations: Sequence[Observation],
        guesses: Sequence[LabelGuess | None],
        restarts: int,
    ) -> Lanes:
        observed = torch.stack([flatten(estimated_gradient(observation)) for observation in observations])
        if not bool(observed.abs().amax(1).gt(0).all()):
            raise InputError("an update is zero everywhere.", hint="There is nothing to match; check the client.")
        labels = None
        if not problem.soft_labels:
            stacked = torch.stack([guess.labels for guess in guesses if guess is not None])
            labels = stacked.to(observed.device).repeat_interleave(restarts, 0)
        return Lanes(observed.repeat_interleave(restarts, 0), labels)

    def _start(self, problem: MatchingProblem, guess: LabelGuess | None, seed: int, restart: int) -> Tensor:
        source = generator(seed, "start", restart)
        variables = problem.parameterisation.start(source)
        if not problem.soft_labels:
            return variables
        classes = (problem.size - len(variables)) // problem.batch
        if guess is None:
            logits = torch.randn(problem.batch, classes, generator=source)
        else:
            logits = _CONFIDENT_LOGIT * F.one_hot(guess.labels.cpu(), classes)
        return torch.cat([variables, logits.reshape(-1)])

    def _evaluation(self, problem: MatchingProblem, z: Tensor, lanes: Lanes, restarts: int) -> Evaluate:
        evaluate = choose_derivatives(problem, self.config.second_order, z, lanes)
        if self.config.consensus == "none" or restarts == 1 or not self.config.group_weight:
            return evaluate
        return GroupConsistency(
            evaluate, self.config.group_weight, self.config.consensus, restarts, problem.parameterisation.shape
        )

    def _collect(
        self,
        problem: MatchingProblem,
        observation: Observation,
        solution: Solution,
        trace: _Trace,
        first_lane: int,
        restarts: int,
        guess: LabelGuess | None,
        seconds: float,
    ) -> Reconstruction:
        """Choose the restart with the least objective; diverged ones are discarded and counted."""
        own = solution.values[first_lane : first_lane + restarts]
        finite = torch.isfinite(own)
        if not bool(finite.any()):
            raise TrialError(
                f"all {restarts} start(s) of the attack diverged.", hint="Lower its learning rate, or add restarts."
            )
        best = first_lane + int(own.where(finite, own.new_full((), float("inf"))).argmin())
        notes = guess.notes if guess is not None else ()
        if not bool(finite.all()):
            notes = (*notes, f"{restarts - int(finite.sum())} of {restarts} starts diverged and were discarded")
        images = to_images(problem, observation, solution.z[best].detach())
        labels = solution.lanes.labels
        return Reconstruction(
            median_filter(images, self.config.median) if self.config.median else images,
            problem.label_logits(solution.z[best]).argmax(-1) if labels is None else labels[best],
            float(solution.values[best]),
            trace.of_lane(best),
            seconds,
            notes,
        )


def to_images(problem: MatchingProblem, observation: Observation, z: Tensor) -> Tensor:
    """Return the images [B, C, H, W] in [0, 1] that one lane's variables z [D] stand for."""
    return input_normalisation(observation).undo(problem.inputs(z)).detach().clamp(0, 1)


def median_filter(images: Tensor, side: int) -> Tensor:
    """Replace each pixel of [B, C, H, W] by the median of the side x side square around it, edges reflected."""
    margin = side // 2
    padded = F.pad(images, (margin, margin, margin, margin), mode="reflect")
    return padded.unfold(2, side, 1).unfold(3, side, 1).flatten(-2).median(-1).values


class _Box:
    """Clamps inputs to what images in [0, 1] can become; label logits are left alone."""

    def __init__(self, problem: MatchingProblem, observation: Observation) -> None:
        normalisation = input_normalisation(observation)
        like = next(iter(problem.parameters.values()))
        black = normalisation(like.new_zeros(problem.parameterisation.shape)).reshape(-1)
        white = normalisation(like.new_ones(problem.parameterisation.shape)).reshape(-1)
        free = like.new_full((problem.size - len(black),), float("inf"))
        self._low, self._high = torch.cat([black, -free]), torch.cat([white, free])

    def __call__(self, z: Tensor) -> Tensor:
        return torch.clamp(z, self._low, self._high)


def _anywhere(z: Tensor) -> Tensor:
    return z


class _Relabel:
    """Re-estimates each lane's labels from its current images."""

    def __init__(self, problem: MatchingProblem, observation: Observation) -> None:
        self._problem = problem
        self._observation = observation

    def __call__(self, z: Tensor, lanes: Lanes) -> Lanes:
        assert lanes.labels is not None
        labels = [
            refine_labels(self._observation, self._problem.inputs(variables), current)
            for variables, current in zip(z, lanes.labels, strict=True)
        ]
        return Lanes(lanes.observed, torch.stack(labels))


class _Trace:
    """Keeps the objectives over time and tells the listener how the images look."""

    def __init__(
        self,
        problem: MatchingProblem,
        observation: Observation,
        listener: Listener | None,
        iterations: int,
        restarts: int,
    ) -> None:
        self._problem = problem
        self._observation = observation
        self._listener = listener
        self._iterations = iterations
        self._restarts = restarts
        self._steps: list[int] = []
        self._values: list[Tensor] = []

    def __call__(self, step: int, values: Tensor, z: Tensor) -> None:
        self._steps.append(step)
        self._values.append(values.detach().clone())
        if self._listener is not None:
            shown = [to_images(self._problem, self._observation, lane) for lane in z[:: self._restarts]]
            self._listener(step / self._iterations, torch.stack(shown))

    def of_lane(self, lane: int) -> tuple[tuple[int, float], ...]:
        return tuple((step, float(values[lane])) for step, values in zip(self._steps, self._values, strict=True))


def _unroll(observation: Observation, local_steps: LocalSteps) -> Unroll | None:
    knowledge = observation.knowledge
    if local_steps == "average" or observation.update.kind == "gradient" or (knowledge.clients or 1) > 1:
        return None
    if knowledge.learning_rate is None or knowledge.local_steps is None:
        raise CapabilityError(
            "unrolling local steps needs the learning rate and their number.",
            hint="Grant `learning_rate` and `local_steps` under `attacker:` in the scenario.",
        )
    return Unroll(knowledge.local_steps, knowledge.learning_rate)


def _known_statistics(observation: Observation, priors: Priors) -> Statistics | None:
    """Return the normalisation statistics the prior on them compares with; None switches it off."""
    if not priors.bn or priors.bn_source == "none":
        return None
    if priors.bn_source == "batch":
        if observation.knowledge.bn_statistics is None:
            raise CapabilityError(
                "the prior on batch normalisation statistics needs those of the client's batch.",
                hint="Set `client.bn_mode: train-exact-stats`, or give the attack bn=running or bn=none.",
            )
        return observation.knowledge.bn_statistics
    return {
        name: (module.running_mean, module.running_var)
        for name, module in observation.model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None
    } or None


def _is_personal(observation: Observation) -> bool:
    """Tell whether what is known of the defence serves this observation only."""
    view = observation.knowledge.defence
    return view is not None and view.personal


def _refuse_mixture(observations: Sequence[Observation]) -> None:
    first = observations[0]
    if any(o.model is not first.model or o.update.kind != first.update.kind for o in observations[1:]):
        raise InputError("observations attacked together must come from one model and be of one kind.")
