"""LAMP: gradient matching on embeddings, and rearrangements that a language model finds more probable.

Equations: Balunovic et al. (NeurIPS 2022), Sec. 4: minimise the distance of gradients (mean of one minus the cosine,
or TAG's) plus `norm` times (mean length of the vectors - that of the embeddings)^2; every `every` steps, after a tenth
of them, try `proposals` rearrangements of each text (two words swapped, one moved, a span moved, a prefix put behind)
and keep the best by distance and `fluency` times the loss of the language model.
Threat model: honest but curious server that knows labels, or infers them, the lengths of the texts, and public texts.
Departures: a rearrangement is judged by the logarithm of the distance plus `fluency` times the language model's loss,
and TAG's distance is counted in that of the start: the authors' weights are in the units of BERT's gradients, and other
models have others. The language model is one of pairs of neighbours in the public texts, with the clients' own tokens,
so that nothing is tokenised again (the authors trained a GPT-2 on the victim's vocabulary), or stories15M, which reads
the text in tokens of its own; the mean length of embeddings is the model's own, not 1.4; `layers` matches the first
blocks only.
Cost: a second derivative per step, a first one for each rearrangement; with `prior=stories15m` a pass of that too.
Known breaks: as of `tag`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from fedseal.attacks.text.fluency import Fluency, Prior, fluency_of
from fedseal.attacks.text.matching import Match, TextProblem, norm_of
from fedseal.attacks.text.ordering import rearranged
from fedseal.attacks.text.tag import EmbeddingAttack, Masks
from fedseal.core.attack import register_attack
from fedseal.core.registry import Info

_BURN_IN = 0.1
_STEP, _KEPT = 50, 0.89
"""The rate falls to that share every so many steps."""
_TINY = 1e-30


@register_attack(
    "lamp",
    Info(
        "text by gradient matching and rearrangements that public texts make likelier",
        paper="Balunovic et al., NeurIPS 2022",
        threat="passive",
        needs=("batch_size",),
    ),
)
class Lamp(EmbeddingAttack):
    """LAMP.

    Args:
        match: `cosine`, or `l1l2` for the variant with TAG's distance.
        iterations: steps of Adam.
        rate: of Adam at first.
        layers: match the gradients of the first so many blocks alone; all if None.
        starts: random starts of which the best is taken, then as many orders of it.
        every: steps between rearrangements.
        proposals: rearrangements tried of each text.
        norm: weight of the vectors' length.
        fluency: weight of the language model: a text that is likelier by one nat may be further off by this share.
        prior: the language model: `n-gram`, pairs in public texts, or `stories15m` (`fedseal data get stories15m`).
        dropout: `masks` seeks those of clients that train with dropout, as GRAB does; `ignored` takes it for off.
    """

    def __init__(
        self,
        match: Match = "cosine",
        iterations: int = 2000,
        rate: float = 0.01,
        layers: int | None = None,
        starts: int = 500,
        every: int = 75,
        proposals: int = 200,
        norm: float = 1.0,
        fluency: float = 0.2,
        prior: Prior = "n-gram",
        dropout: Masks = "ignored",
    ) -> None:
        self.match, self.iterations, self.rate, self.layers = match, iterations, rate, layers
        self.starts, self.every, self.proposals = starts, every, proposals
        self.norm, self.fluency, self.dropout = norm, fluency, dropout
        self.prior: Prior = prior

    def start(self, problem: TextProblem, sources: Sequence[torch.Generator]) -> Tensor:
        """Return the best of random starts, then of its orders, at the embeddings' mean length."""
        best = _best(problem, (problem.start(sources) for _ in range(max(1, self.starts))))
        orders = (self._reordered(problem, best, sources) for _ in range(self.starts))
        best = _best(problem, chain([best], orders))
        size = best.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        return problem.framed(best / size * norm_of(problem))

    def counted(self, problem: TextProblem, words: Tensor) -> TextProblem:
        """Count TAG's distance in that of the start, as the cosine's is 1 there by itself."""
        if self.match == "cosine":
            return problem
        with torch.no_grad():
            return replace(problem, unit=problem.mismatch(words, problem.masks()).clamp(min=_TINY))

    def objective(self, problem: TextProblem, words: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Return the distance, and how far the vectors' lengths are from words'."""
        lengths = torch.where(problem.free, words.norm(dim=-1), 0).sum((1, 2))
        apart = (lengths / problem.free.sum((1, 2)).clamp(min=1) - norm_of(problem)).square()
        return problem.mismatch(words, masks) + self.norm * apart

    def between(
        self,
        problem: TextProblem,
        words: Tensor,
        masks: Sequence[Tensor],
        step: int,
        steps: int,
        sources: Sequence[torch.Generator],
    ) -> Tensor:
        """Try rearrangements now and then, those of each lane's texts one after the other."""
        every = min(self.every, max(1, steps // 8))
        if step < _BURN_IN * steps or step % every != 1 % every:
            return words
        prior = fluency_of(self.prior, problem.tokeniser, problem.known.auxiliary)
        best, least = words, self._score(problem, words, masks, prior)
        for proposal in range(1, self.proposals):
            for text in range(words.shape[1]):
                tried = best.clone()
                for lane, source in enumerate(sources):
                    places = torch.nonzero(problem.free[lane, text]).flatten()
                    order = rearranged(len(places), proposal % 4, source)
                    tried[lane, text, places] = best[lane, text, places[order]]
                values = self._score(problem, tried, masks, prior)
                better = values < least
                best = torch.where(better[:, None, None, None], tried, best)
                least = torch.where(better, values, least)
        return best

    def decay(self, step: int, steps: int) -> float:
        """Return the share of the rate that is left, over as many stages as the paper's."""
        stage = max(1, round(_STEP * steps / 2000))
        return float(_KEPT ** (step // stage))

    def _score(self, problem: TextProblem, words: Tensor, masks: Sequence[Tensor], prior: Fluency | None) -> Tensor:
        with torch.no_grad():
            value = problem.mismatch(words, masks).clamp(min=_TINY).log()
        if prior is None:
            return value
        losses = prior(problem.read(words).flatten(0, 1).cpu()).view(len(value), -1).mean(1)
        return value + self.fluency * losses.to(value)

    def _reordered(self, problem: TextProblem, words: Tensor, sources: Sequence[torch.Generator]) -> Tensor:
        changed = words.clone()
        for lane, source in enumerate(sources):
            for text in range(words.shape[1]):
                places = torch.nonzero(problem.free[lane, text]).flatten()
                order = torch.randperm(len(places), generator=source)
                changed[lane, text, places] = words[lane, text, places[order]]
        return changed


def _best(problem: TextProblem, tried: Iterable[Tensor]) -> Tensor:
    """Return of each lane the vectors whose gradient is closest."""
    best, least, masks = None, torch.inf * problem.unit, problem.masks()
    for words in tried:
        with torch.no_grad():
            values = problem.mismatch(words, masks)
        better = values < least
        best = words if best is None else torch.where(better[:, None, None, None], words, best)
        least = torch.where(better, values, least)
    assert best is not None
    return best
