"""TAG: gradient matching for transformers in the space of embeddings.

Equations: Deng et al. (EMNLP Findings 2021): minimise, over the vectors fed instead of words, the sum over tensors of
||g' - g||^2 + a ||g' - g||_1; each vector is read as the token closest in direction.
Threat model: honest but curious server that knows labels, or infers them, and the lengths of the texts.
Departures: constants of LAMP's authors (a = 0.01, Adam with rate 0.1, 2500 steps), as the paper's own are not stated;
`layers` matches the first blocks only, which is nearly as telling and the way to run it without a GPU.
Cost: a second derivative of the model per step.
Known breaks: order is often lost; long batches; dropout while clients train, unless its masks are sought
(`dropout=masks`, the part of GRAB, Feng et al., CCS 2024, that goes with any matching).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedseal.attacks.text.dropout import Drop, drops_of
from fedseal.attacks.text.matching import Match, TextProblem, problem_of, within
from fedseal.attacks.turns import in_groups
from fedseal.core.attack import Attack, Budget, Listener, register_attack
from fedseal.core.modality import TEXT
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator

Masks: TypeAlias = Literal["ignored", "masks"]
_SHOWN = 20
_BLOCKS = 2
"""Blocks whose masks of dropout are sought: what later ones drop hardly says more of the words (GRAB)."""
_ENTRIES = 1 << 24
"""Entries of all lanes' gradients together."""


class EmbeddingAttack(Attack):
    """Descends on vectors of words; subclasses say how they start, what they minimise and what they try in between."""

    takes = (TEXT,)
    match: Match
    iterations: int
    layers: int | None
    rate: float
    dropout: Masks

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack updates of one model as lanes, as many at once as memory allows."""
        steps = budget.iterations or self.iterations
        size = sum(value.numel() for value in observations[0].update.tensors.values())
        at_once = max(1, _ENTRIES // max(1, size))

        def attack(seen: Sequence[Observation], own: Sequence[int]) -> list[Reconstruction]:
            parts = [slice(place, place + at_once) for place in range(0, len(seen), at_once)]
            return [one for part in parts for one in self._descend(seen[part], steps, own[part])]

        return in_groups(attack, observations, seeds, listener)

    def _descend(self, seen: Sequence[Observation], steps: int, seeds: Sequence[int]) -> list[Reconstruction]:
        began = time.perf_counter()
        problem = problem_of(seen, self.match, seeds, self.layers, self._drops)
        sources = [generator(seed, self.name) for seed in seeds]
        words, masks = self.start(problem, sources), problem.masks()
        problem = self.counted(problem, words)
        unknowns = [words.requires_grad_(), *(mask.requires_grad_() for mask in masks)]
        optimiser = torch.optim.Adam(unknowns, lr=self.rate)
        best, least = words.detach().clone(), torch.full((len(seen),), torch.inf).to(words)
        trace = []
        for step in range(steps):
            values = self.objective(problem, words, masks)
            found = values.detach() < least
            best = torch.where(found[:, None, None, None], words.detach(), best)
            least = torch.where(found, values.detach(), least)
            slopes = torch.autograd.grad(values.sum(), unknowns)
            for unknown, slope in zip(unknowns, slopes, strict=True):
                unknown.grad = torch.nan_to_num(slope)
            optimiser.step()
            with torch.no_grad():
                words.copy_(problem.framed(words))
                words.copy_(self.between(problem, words, masks, step, steps, sources))
            for group in optimiser.param_groups:
                group["lr"] = self.rate * self.decay(step, steps)
            if step % max(1, steps // _SHOWN) == 0:
                trace.append((step, values.detach()))
        texts, seconds = problem.read(best), (time.perf_counter() - began) / len(seen)
        sought = (f"sought the masks of {len(problem.drops)} calls of dropout",) if problem.drops else ()
        return [
            Reconstruction(
                texts[lane],
                problem.labels[lane],
                float(least[lane]),
                tuple((step, float(values[lane])) for step, values in trace),
                seconds,
                sought,
            )
            for lane in range(len(seen))
        ]

    def _drops(self, model: nn.Module, ids: Tensor) -> tuple[Drop, ...]:
        """Return the calls of dropout in the embedding and the first blocks, where their masks are to be sought."""
        if self.dropout == "ignored":
            return ()
        names = [name for name, module in model.named_modules() if isinstance(module, nn.Dropout) and 0 < module.p < 1]
        return drops_of(model, ids, [name for name in names if within(name, self.layers or _BLOCKS)])

    def start(self, problem: TextProblem, sources: Sequence[torch.Generator]) -> Tensor:
        """Return where the search begins."""
        return problem.start(sources)

    def counted(self, problem: TextProblem, words: Tensor) -> TextProblem:
        """Return the problem with the unit in which its distance is counted, by where the search begins."""
        return problem

    def objective(self, problem: TextProblem, words: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Return what is minimised, of each lane."""
        return problem.mismatch(words, masks)

    def between(
        self,
        problem: TextProblem,
        words: Tensor,
        masks: Sequence[Tensor],
        step: int,
        steps: int,
        sources: Sequence[torch.Generator],
    ) -> Tensor:
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
        match: `l1l2` is TAG's distance; `cosine` that of Inverting Gradients (Geiping et al. 2020) on vectors of words.
        iterations: steps of Adam.
        rate: of Adam.
        layers: match the gradients of the first so many blocks alone; all if None.
        dropout: `masks` seeks those of clients that train with dropout, as GRAB does; `ignored` takes it for off.
    """

    def __init__(
        self,
        match: Match = "l1l2",
        iterations: int = 2500,
        rate: float = 0.1,
        layers: int | None = None,
        dropout: Masks = "ignored",
    ) -> None:
        self.match, self.iterations, self.rate, self.layers = match, iterations, rate, layers
        self.dropout = dropout
