"""GGL, Generative Gradient Leakage (Li et al., CVPR 2022), and GIAS (Jeon et al., NeurIPS 2021): search in a generator.

`ggl` looks for the latent whose image would have sent the update, by CMA-ES or by Adam; what is known of the defence
acts on the dummy gradient inside of the search. `gias` does so by Adam, and then moves the generator's weights, one set
for each image. The generator is fitted to the attacker's public images (a small DCGAN, or `prior=ae`), came with
fedseal or lies in a file. Threat model: passive server with a generator of such images.

Equations: `ggl` minimises (1/L) sum_l |T(g_l(G(z))) - u_l|^2 + kl KL(N(m(z), s(z)^2), N(0, 1)) with m and s the mean
and deviation over the entries of z; `gias` 1 - cos(g(G_w(z)), u) + tv TV over z, then over w.

Departures: the generators are those a CPU trains, not BigGAN or StyleGAN2; latents are not squashed by tanh; T is the
defence as the attacker knows it, where the authors estimate its parameters from the update. `preset=paper` has the
authors' iterations, population and rates.

Cost: CMA-ES evaluates a population per generation, Adam one second-order pass through the generator per step. Stage 2
of `gias` takes as many steps again, over all weights.

Known breaks: images the generator cannot draw, by which PSNR stays poor where the picture is right in kind; batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.derivatives import choose_derivatives
from fedseal.attacks.matching.descent import Descent, Surroundings
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.evaluation import Evaluate
from fedseal.attacks.matching.evolution import Evolution
from fedseal.attacks.matching.latents import Latents, ScalarDivergence, Weights
from fedseal.attacks.matching.objectives import Cosine, LayerMean
from fedseal.attacks.matching.outcome import Outcome
from fedseal.attacks.matching.parameterisation import Parameterisation
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.attacks.matching.recipe import Recipe
from fedseal.attacks.matching.surroundings import to_images
from fedseal.attacks.reading import image_count, input_normalisation
from fedseal.core.attack import ATTACKS, Budget, Listener
from fedseal.core.errors import UsageError
from fedseal.core.observation import Observation
from fedseal.core.ranges import Amount, Rate, Weight
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.priors.named import PriorName
from fedseal.priors.prior import Prior

Preset: TypeAlias = Literal["cpu", "paper"]
Solver: TypeAlias = Literal["adam", "cma"]

_GGL: dict[tuple[Preset, Solver], int] = {
    ("cpu", "adam"): 300,
    ("cpu", "cma"): 100,
    ("paper", "adam"): 2500,
    ("paper", "cma"): 500,
}
_POPULATION: dict[Preset, int] = {"cpu": 16, "paper": 50}


@dataclass(frozen=True)
class GenerativeAttack(MatchingAttack):
    """Search in the latents of a prior that generates; `tv` as a prior has none."""

    def __post_init__(self) -> None:
        """Refuse a prior without latents."""
        if self.prior in ("tv", "patch", "diffusion"):
            raise UsageError(
                f"this attack searches in a generator, and a {self.prior} prior is none.", hint="Use gan or ae."
            )
        super().__post_init__()

    def _parameterisation(self, observation: Observation, recipe: Recipe, prior: Prior | None) -> Parameterisation:
        assert prior is not None
        shape = (image_count(observation), *observation.knowledge.image_shape)
        return Latents(shape, input_normalisation(observation), prior)


@ATTACKS.register(
    "ggl",
    Info(
        "search the latent of a trained generator, the defence inside",
        paper="Li et al., CVPR 2022",
        threat="passive, with a generator of such images",
        needs=("batch_size", "auxiliary"),
    ),
)
@dataclass(frozen=True)
class GenerativeLeakage(GenerativeAttack):
    """GGL.

    Attributes:
        iterations: steps of Adam, or generations; 0 for the preset's: 300 or 100, in the paper 2,500 or 500.
        solver: Adam through the generator, or CMA-ES (extra `tune`), which needs no slopes.
        preset: `cpu`, or `paper`: iterations and a population of 50.
        lr: of Adam, rising over a twentieth of the run and falling over its last quarter.
        kl: weight of the divergence.
        population: of CMA-ES; 0 for the preset's: 16 or 50.
    """

    iterations: Amount = 0
    prior: PriorName = "gan"
    solver: Solver = "adam"
    preset: Preset = "cpu"
    lr: Rate = 0.1
    kl: Weight = 0.1
    population: Amount = 0

    def __post_init__(self) -> None:
        """Fill in what the preset decides."""
        object.__setattr__(self, "iterations", self.iterations or _GGL[self.preset, self.solver])
        object.__setattr__(self, "population", max(4, self.population or _POPULATION[self.preset]))
        super().__post_init__()

    def recipe(self) -> Recipe:
        """Minimise the mean over tensors of squared distances."""
        if self.solver == "cma":
            return Recipe(LayerMean(), Evolution(self.population))
        return Recipe(LayerMean(), Descent(Adam(), lr=self.lr, schedule="ramps"))

    def _evaluation(
        self, problem: MatchingProblem, z: Tensor, lanes: Lanes, restarts: int, prior: Prior | None
    ) -> Evaluate:
        assert prior is not None
        evaluate = choose_derivatives(problem, self.second_order, z, lanes)
        return ScalarDivergence(evaluate, self.kl, (problem.batch, prior.latent)) if self.kl else evaluate


@ATTACKS.register(
    "gias",
    Info(
        "search the latent of a trained generator, then its weights",
        paper="Jeon et al., NeurIPS 2021",
        threat="passive, with a generator of such images",
        needs=("batch_size", "auxiliary"),
    ),
)
@dataclass(frozen=True)
class GradientInversionAlternativeSpaces(GenerativeAttack):
    """GIAS.

    Attributes:
        iterations: of stage 1; 0 for the preset's: 200, in the paper 1,500.
        preset: `cpu`, or `paper`: iterations, four restarts.
        lr: of stage 1, along a cosine.
        weights_lr: of stage 2; 1e-3 in the paper for StyleGAN2, 1e-5 for BigGAN.
        weights_share: steps of stage 2 for each of stage 1; the paper takes 5,000 to 8,000 after 1,000 to 1,500.
        tv: weight of total variation.
    """

    iterations: Amount = 0
    prior: PriorName = "gan"
    preset: Preset = "cpu"
    lr: Rate = 0.1
    weights_lr: Rate = 1e-3
    weights_share: Weight = 1.0
    tv: Weight = 1e-4
    prior_weight: Weight = 0.01

    def __post_init__(self) -> None:
        """Fill in what the preset decides."""
        if self.preset == "paper":
            object.__setattr__(self, "restarts", max(4, self.restarts))
        object.__setattr__(self, "iterations", self.iterations or (200 if self.preset == "cpu" else 1500))
        super().__post_init__()

    def recipe(self) -> Recipe:
        """Minimise the angle by Adam."""
        return Recipe(Cosine(), Descent(Adam(), lr=self.lr, schedule="cosine"), Priors(tv=self.tv))

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Search latents of all targets together; the weights behind each are moved where its latents are chosen."""

        def halved(done: float, images: Tensor) -> None:
            assert listener is not None
            listener(done / 2, images)

        found = super().run_many(observations, budget, seeds, None if listener is None else halved)
        if listener is not None:
            listener(1.0, torch.stack([one.images for one in found]))
        return found

    def _finish(self, outcome: Outcome, found: Reconstruction) -> Reconstruction:
        """Move the generator's weights behind the latents that were chosen."""
        steps = int(self.weights_share * max(step for step, _ in found.trace))
        prior = self._prior(outcome.observation.knowledge)
        if not steps or prior is None:
            return found
        first = outcome.problem.parameterisation
        latents = outcome.z[: first.size].reshape(outcome.problem.batch, -1)
        problem = self._problem(outcome.observation, prior)
        problem.parameterisation = Weights(first.shape, input_normalisation(outcome.observation), prior, latents)
        tail = outcome.z[first.size :]
        z = torch.cat([problem.parameterisation.start(torch.Generator()).to(tail), tail])[None]
        descent = Descent(Adam(), lr=self.weights_lr, schedule="cosine")
        evaluate = choose_derivatives(problem, self.second_order, z, outcome.lane)
        moved = descent.minimise(evaluate, z, outcome.lane, steps, Surroundings(_unheard, steps, [torch.Generator()]))
        before = float(evaluate(z, outcome.lane).values[0])
        after = float(moved.values[0])
        said = (*found.notes, f"moving the generator's weights took the objective from {before:.3g} to {after:.3g}")
        if not after < before:
            return replace(found, notes=said)
        return replace(found, images=to_images(problem, moved.z[0]), objective=after, notes=said)


def _unheard(step: int, values: Tensor, z: Tensor) -> None:
    """Take a report and say nothing."""
