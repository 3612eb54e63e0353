"""The matching engine: prepares lanes, descends, chooses restarts by the attacker's own objective."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedseal.attacks.labels import LabelGuess, infer_labels
from fedseal.attacks.matching.companions import Parts, companions
from fedseal.attacks.matching.derivatives import SecondOrder, choose_derivatives
from fedseal.attacks.matching.descent import Descent, Surroundings
from fedseal.attacks.matching.evaluation import Evaluate
from fedseal.attacks.matching.groups import GroupConsistency
from fedseal.attacks.matching.latents import GaussianLatents, Latents
from fedseal.attacks.matching.lbfgs import LBFGS
from fedseal.attacks.matching.outcome import Outcome
from fedseal.attacks.matching.parameterisation import DeepImagePrior, Parameterisation, Pixels
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.attacks.matching.pull import EVERY, Pull
from fedseal.attacks.matching.recipe import LocalSteps, Recipe
from fedseal.attacks.matching.surroundings import Box, Relabel, Trace
from fedseal.attacks.matching.threat import known_statistics, surrogate_for, unrolled
from fedseal.attacks.matching.weighing import weigh
from fedseal.attacks.reading import (
    attack_model,
    attack_parameters,
    estimated_gradient,
    image_count,
    input_normalisation,
    update_scale,
)
from fedseal.core.attack import Attack, Budget, Foreknowledge, Listener
from fedseal.core.caveat import Caveat
from fedseal.core.errors import InputError, UsageError
from fedseal.core.knowledge import CROSS_ENTROPY, Knowledge
from fedseal.core.observation import Observation
from fedseal.core.ranges import Amount, Count, Weight
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten
from fedseal.core.trainable import Trainable
from fedseal.priors.named import PriorName, find_prior, fit_of, is_brought
from fedseal.priors.prior import Prior

_KINKS = Caveat(
    "ReLU with L-BFGS",
    "needs a twice differentiable model; ReLU and max-pooling have kinks, so it will look weaker than attackers are.",
    "Judge this model by attacks that use Adam, such as `ig`.",
)
_REPORTS = 40


@dataclass(frozen=True)
class MatchingAttack(Attack):
    """An attack by matching gradients. A member of the family is a frozen dataclass: its fields are its options.

    A subclass adds the options that make sense for it, overrides defaults, and says in `recipe` what they mean.

    Attributes:
        iterations: steps, if the budget says nothing else.
        restarts: random starts, if the budget says nothing else.
        local_steps: read a weight change as a mean gradient, where the client began (`average`) or at a point on its
            way that is sought with the images (`surrogate`), or simulate its local steps one by one (`unroll`).
        second_order: how second-order products are computed.
        prior: what is believed of images beside the attack's own terms: `tv` nothing more; `patch` or `diffusion`, a
            denoiser in the loop; `ae` or `gan`, search in the latents; each fitted to the public images, or `embedded`,
            `dcgan-faces` or a file.
        prior_weight: of a learned prior: of the pull towards the denoised images, or of the latents' probability.
        prior_steps: of the training, where the prior is fitted; 0 for its kind's own.
    """

    info = Info("match the gradient", needs=("batch_size",))
    any_loss: ClassVar[bool] = True
    problem_type: ClassVar[type[MatchingProblem]] = MatchingProblem

    iterations: Count = 1000
    restarts: Count = 1
    local_steps: LocalSteps = "average"
    second_order: SecondOrder = "auto"
    prior: PriorName = "tv"
    prior_weight: Weight = 0.03
    prior_steps: Amount = 0

    @abstractmethod
    def recipe(self) -> Recipe:
        """Return what the options stand for."""

    def __post_init__(self) -> None:
        """Refuse options that mean nothing."""
        for option in ("iterations", "restarts"):
            if getattr(self, option) < 1:
                raise UsageError(f"{option} must be at least 1, got {getattr(self, option)}.")
        recipe = self.recipe()
        if recipe.median < 0 or (recipe.median and recipe.median % 2 == 0):
            raise UsageError(f"median must be 0 or an odd number of pixels, got {recipe.median}.")
        if recipe.relabel_every < 0 or recipe.group_weight < 0 or recipe.generator_channels < 0:
            raise UsageError("relabel_every, group_weight and channels cannot be negative.")

    @property
    def needs(self) -> frozenset[str]:
        """The capabilities that must be granted; public images where a prior is fitted to them."""
        fitted = self.prior != "tv" and not is_brought(self.prior)
        own = frozenset(self.info.needs) - {"auxiliary"}
        return own | {"auxiliary"} if fitted else own

    def trainables(self, model: nn.Module, knowledge: Knowledge) -> Iterator[Trainable[Any]]:
        """Yield the prior, where it is fitted to the public images."""
        if "auxiliary" in self.needs:
            self.check_knowledge(knowledge)
            yield fit_of(self.prior, knowledge.auxiliary, self.prior_steps, self.name)

    def brings(self) -> Foreknowledge | None:
        """Say what a prior from elsewhere was trained on."""
        if not is_brought(self.prior):
            return None
        found = find_prior(self.prior, None, self.prior_steps, self.name)
        return Foreknowledge(f"a prior of the kind {found.kind}, trained on {found.origin.words}", found.origin.holds)

    def caveats(self, model: nn.Module) -> tuple[Caveat, ...]:
        """Say that L-BFGS, which takes curvature for granted, is led astray by kinks."""
        kinked = any(isinstance(module, nn.ReLU | nn.LeakyReLU | nn.MaxPool2d) for module in model.modules())
        descent = self.recipe().descent
        return (_KINKS,) if kinked and isinstance(descent, Descent) and isinstance(descent.step, LBFGS) else ()

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack observations of one model as lanes of one batch, `restarts` consecutive lanes each.

        Observations of which different things are known are different problems, and are attacked one after the other.
        """
        for observation in observations:
            self.check(observation)
        recipe = self.recipe()
        groups = companions(observations, recipe.priors, reads_variances=callable(recipe.objective))
        if len(groups) == 1:
            return self._run_together(observations, budget, seeds, listener)
        shown = torch.full(
            (len(observations), image_count(observations[0]), *observations[0].knowledge.image_shape), 0.5
        )
        parts = None if listener is None else Parts(listener, shown, groups)
        found: dict[int, Reconstruction] = {}
        for number, places in enumerate(groups):
            own, own_seeds = [observations[place] for place in places], [seeds[place] for place in places]
            results = self._run_together(own, budget, own_seeds, None if parts is None else parts.of(number))
            found.update(zip(places, results, strict=True))
        return [found[place] for place in range(len(observations))]

    def _run_together(
        self, observations: Sequence[Observation], budget: Budget, seeds: Sequence[int], listener: Listener | None
    ) -> list[Reconstruction]:
        """Attack observations that share all but their updates and labels."""
        started = time.perf_counter()
        recipe = self.recipe()
        restarts = budget.restarts or self.restarts
        iterations = budget.iterations or self.iterations
        guesses = [self._guess(observation, seed) for observation, seed in zip(observations, seeds, strict=True)]
        weighed = weigh(self, partial(self._run_together, listener=None), observations[0], iterations)
        observations = [weighed.applied(observation) for observation in observations]
        prior = self._prior(observations[0].knowledge)
        problem = self._problem(observations[0], prior)
        recipe = recipe.under(observations[0].knowledge.defence)
        lanes = self._lanes(problem, observations, guesses, restarts)
        runs = [
            (guess, seed, restart) for guess, seed in zip(guesses, seeds, strict=True) for restart in range(restarts)
        ]
        z = torch.stack([self._start(problem, *run) for run in runs]).to(lanes.observed)
        trace = Trace(problem, listener, iterations, restarts)
        known = observations[0].knowledge
        relabelled = not problem.soft_labels and known.labels is None and known.loss == CROSS_ENTROPY
        evaluate = self._evaluation(problem, z, lanes, restarts, prior)
        pixels = isinstance(problem.parameterisation, Pixels)
        solution = recipe.descent.minimise(
            evaluate,
            z,
            lanes,
            iterations,
            Surroundings(
                report=trace,
                report_every=max(1, iterations // _REPORTS),
                sources=[generator(seed, "optimiser", restart) for _, seed, restart in runs],
                project=Box(problem) if recipe.boxed and pixels else None,
                relabel=Relabel(problem, [o for o in observations for _ in range(restarts)]) if relabelled else None,
                relabel_every=recipe.relabel_every,
                look=evaluate.look if isinstance(evaluate, Pull) else None,
                look_every=EVERY,
            ),
        )
        seconds = (time.perf_counter() - started) / len(observations)
        ends = [
            Outcome.choose(problem, observation, guess, solution, trace, range(first, first + restarts))
            for first, observation, guess in zip(range(0, len(runs), restarts), observations, guesses, strict=True)
        ]
        found = [self._finish(end, end.answer(self.local_steps, recipe.median, seconds)) for end in ends]
        said = () if prior is None else (f"a {prior.kind} prior from {prior.origin.words}",)
        return [replace(one, notes=(*one.notes, *weighed.notes, *said)) for one in found]

    def _prior(self, knowledge: Knowledge) -> Prior | None:
        """Return the learned prior, if one is asked for."""
        if self.prior == "tv":
            return None
        return find_prior(self.prior, knowledge.auxiliary, self.prior_steps, self.name)

    def _guess(self, observation: Observation, seed: int) -> LabelGuess | None:
        """Return the labels to start from; None when they start from nothing."""
        free = observation.knowledge.labels is None and observation.knowledge.label_rule == "unknown"
        return None if free or self.recipe().labels == "free" else infer_labels(observation, seed)

    def _problem(self, observation: Observation, prior: Prior | None = None) -> MatchingProblem:
        knowledge = observation.knowledge
        recipe = self.recipe().under(knowledge.defence)
        assert not callable(recipe.objective)
        free = knowledge.labels is None and knowledge.label_rule == "unknown"
        return self.problem_type(
            attack_model(observation),
            attack_parameters(observation),
            parameterisation=self._parameterisation(observation, recipe, prior),
            num_classes=knowledge.num_classes,
            objective=recipe.objective,
            priors=recipe.priors,
            statistics=known_statistics(observation, recipe.priors),
            loss=knowledge.loss,
            reduction=knowledge.loss_reduction,
            soft_labels=free or recipe.labels != "fixed",
            view=knowledge.defence,
            scale=update_scale(observation),
            clients=knowledge.clients or 1,
            normalisation=input_normalisation(observation),
            unroll=unrolled(observation, self.local_steps),
            surrogate=surrogate_for(observation, self.local_steps, recipe.surrogate_rate),
        )

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
        variables = torch.cat([variables, *(start.reshape(-1).to(variables) for start in problem.unknowns.values())])
        if problem.surrogate is not None:
            variables = torch.cat([variables, variables.new_zeros(1)])
        if not problem.soft_labels:
            return variables
        classes = problem.num_classes
        if guess is None:
            logits = torch.randn(problem.batch, classes, generator=source)
        else:
            logits = problem.training_loss.start(guess.labels.cpu(), classes)
        return torch.cat([variables, logits.reshape(-1)])

    def _evaluation(
        self, problem: MatchingProblem, z: Tensor, lanes: Lanes, restarts: int, prior: Prior | None
    ) -> Evaluate:
        recipe = self.recipe()
        evaluate = choose_derivatives(problem, self.second_order, z, lanes)
        if isinstance(problem.parameterisation, Latents):
            return GaussianLatents(evaluate, self.prior_weight, problem.parameterisation.size)
        if prior is not None:
            return Pull(evaluate, problem, prior, self.prior_weight, len(z))
        if recipe.consensus == "none" or restarts == 1 or not recipe.group_weight:
            return evaluate
        shape = problem.parameterisation.shape
        return GroupConsistency(evaluate, recipe.group_weight, recipe.consensus, restarts, shape)

    def _finish(self, outcome: Outcome, found: Reconstruction) -> Reconstruction:
        """Return what is made of a target's answer: nothing more, unless a member of the family says so."""
        return found

    def _parameterisation(self, observation: Observation, recipe: Recipe, prior: Prior | None) -> Parameterisation:
        """Return what is searched in: pixels, latents of a learned prior, or an untrained generator's weights."""
        shape = (image_count(observation), *observation.knowledge.image_shape)
        normalisation = input_normalisation(observation)
        if prior is not None and prior.generates:
            return Latents(shape, normalisation, prior)
        if recipe.generator_channels:
            return DeepImagePrior(shape, normalisation, recipe.generator_channels)

        def draw(size: torch.Size, source: torch.Generator) -> Tensor:
            if recipe.start == "uniform":
                return normalisation(torch.rand(size, generator=source))
            return torch.randn(size, generator=source) if recipe.start == "normal" else torch.zeros(size)

        return Pixels(shape, draw)
