"""TAG: gradient matching for transformers in the space of embeddings.

Equations: Deng et al. (EMNLP Findings 2021): minimise, over the vectors fed instead of words, the sum over tensors of
||g' - g||^2 + a ||g' - g||_1; each vector is read as the token closest in direction.
Threat model: honest but curious server that knows labels, or infers them, and the lengths of the texts.
Departures: constants of LAMP's authors (a = 0.01, Adam with rate 0.1, 2500 steps), as the paper's own are not stated;
`layers` matches the first blocks only, which is nearly as telling and the way to run it without a GPU.
Cost: a second derivative of the model per step.
Known breaks: order is often lost; long batches; dropout while clients train.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedseal.attacks.text.matching import Match, TextProblem, problem_of
from fedseal.attacks.turns import in_turn
from fedseal.core.attack import Attack, Budget, Listener, register_attack
from fedseal.core.modality import TEXT
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator

_SHOWN = 20


class EmbeddingAttack(Attack):
    """Descends on vectors of words; subclasses say how they start, what they minimise and what they try in between."""

    takes = (TEXT,)
    match: Match
    iterations: int
    layers: int | None
    rate: float

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack one update after the other."""
        steps = budget.iterations or self.iterations
        return in_turn(lambda seen, seed: self._descend(seen, steps, seed), observations, seeds, listener)

    def _descend(self, seen: Observation, steps: int, seed: int) -> Reconstruction:
        problem, source = problem_of(seen, self.match, seed, self.layers), generator(seed, self.name)
        words = self.start(problem, source)
        problem = self.counted(problem, words)
        words.requires_grad_()
        optimiser = torch.optim.Adam([words], lr=self.rate)
        best, least, trace = words.detach().clone(), float("inf"), []
        for step in range(steps):
            value = self.objective(problem, words)
            current = float(value.detach())
            if current < least:
                best, least = words.detach().clone(), current
            (words.grad,) = torch.autograd.grad(value, [words])
            optimiser.step()
            with torch.no_grad():
                words.copy_(problem.framed(words))
                words.copy_(self.between(problem, words, step, steps, source))
            for group in optimiser.param_groups:
                group["lr"] = self.rate * self.decay(step, steps)
            if step % max(1, steps // _SHOWN) == 0:
                trace.append((step, current))
        return Reconstruction(problem.read(best), problem.labels, least, tuple(trace))

    def start(self, problem: TextProblem, source: torch.Generator) -> Tensor:
        """Return where the search begins."""
        return problem.start(source)

    def counted(self, problem: TextProblem, words: Tensor) -> TextProblem:
        """Return the problem with the unit in which its distance is counted, by where the search begins."""
        return problem

    def objective(self, problem: TextProblem, words: Tensor) -> Tensor:
        """Return what is minimised."""
        return problem.mismatch(words)

    def between(self, problem: TextProblem, words: Tensor, step: int, steps: int, source: torch.Generator) -> Tensor:
        """Return the vectors after a step, changed or not."""
        return words

    def decay(self, step: int, steps: int) -> float:
        """Return what is left of the rate."""
        return 1.0


@register_attack(
    "tag",
    Info(
        "text by gradient matching in the space of embeddings, squared and absolute distance",
        paper="Deng et al., EMNLP Findings 2021",
        threat="passive",
        needs=("batch_size",),
    ),
)
class Tag(EmbeddingAttack):
    """TAG.

    Args:
        iterations: steps of Adam.
        rate: of Adam.
        layers: match the gradients of the first so many blocks alone; all if None.
    """

    match: Match = "l1l2"

    def __init__(self, iterations: int = 2500, rate: float = 0.1, layers: int | None = None) -> None:
        self.iterations, self.rate, self.layers = iterations, rate, layers
