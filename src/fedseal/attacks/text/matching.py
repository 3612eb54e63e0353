"""Gradient matching in the space of word embeddings: what TAG and LAMP share.

A text is searched for as one vector per token, which the model is fed instead of its embeddings; the gradient it gives
is moved towards the one observed. Marks and fillers are put back after every step, as their places follow from the
lengths. Updates of one model are lanes of one vectorised pass, for models that can be vectorised.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from fedseal.attacks.reading import attack_model, estimated_gradient, image_count
from fedseal.attacks.text.dropout import Drop, with_masks
from fedseal.attacks.text.reading import labels_of, tokeniser_of
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.tensors import Tensors
from fedseal.core.tokeniser import FILLER, Tokeniser
from fedseal.federation.loss import training_loss
from fedseal.models.text.access import WordTable, fed_with, word_table

Distance: TypeAlias = Callable[[Tensors, Tensors, Tensors], Tensor]
Match: TypeAlias = Literal["cosine", "l1l2"]
_SILENT = 1e-9
"""A tensor whose norm is below this share of the largest one's carries nothing but rounding."""


def l1l2(found: Tensors, wanted: Tensors, counts: Tensors, weight: float = 0.01) -> Tensor:
    """Return TAG's distance: the squared error and a little of the absolute one, over all tensors that count."""
    parts = {name: found[name] - wanted[name] for name in wanted}
    each = [counts[name] * (part.square().sum() + weight * part.abs().sum()) for name, part in parts.items()]
    return torch.stack(each).sum()


def cosine(found: Tensors, wanted: Tensors, counts: Tensors) -> Tensor:
    """Return LAMP's distance: one minus the cosine, mean over the tensors that count."""
    parts = {name: (found[name].flatten(), wanted[name].flatten()) for name in wanted}
    each = [counts[name] * (1 - (a @ b) / (a.norm() * b.norm()).clamp(min=1e-12)) for name, (a, b) in parts.items()]
    return torch.stack(each).sum() / torch.stack([counts[name] for name in wanted]).sum().clamp(min=1)


DISTANCES: dict[Match, Distance] = {"cosine": cosine, "l1l2": l1l2}


@dataclass(frozen=True)
class TextProblem:
    """Updates of one model, and how texts are compared with them; the first dimension of all is the lane.

    Attributes:
        model: the attacker's copy.
        table: its embedding of words.
        tokeniser: public.
        wanted: the gradients to be matched, by name, [K, ...].
        counts: 1 where one of them counts and 0 where it is nothing but rounding, [K].
        labels: given or inferred, [K, B].
        frame: ids [K, B, T] with marks and fillers at their places and any word elsewhere.
        free: where words stand, [K, B, T].
        known: what is known of all of them.
        distance: of gradients.
        unit: in which it is counted, [K].
        drops: the calls of dropout whose masks are sought.
        vectorised: whether lanes run at once.
    """

    model: nn.Module
    table: WordTable
    tokeniser: Tokeniser
    wanted: Tensors
    counts: Tensors
    labels: Tensor
    frame: Tensor
    free: Tensor
    known: Knowledge
    distance: Distance
    unit: Tensor
    drops: tuple[Drop, ...] = ()
    vectorised: bool = True

    @property
    def vectors(self) -> Tensor:
        """The embedding of every token, [V, D]."""
        return self.table.module.weight.detach()

    def start(self, sources: Sequence[torch.Generator]) -> Tensor:
        """Return random vectors [K, B, T, D] of the embeddings' deviation, marks and fillers in place."""
        shape = (*self.frame.shape[1:], self.vectors.shape[1])
        drawn = torch.stack([torch.randn(shape, generator=source) for source in sources]).to(self.vectors)
        return self.framed(self.vectors.std() * drawn)

    def masks(self) -> list[Tensor]:
        """Return where the search for masks begins: at the share that dropout keeps; of each drop [K, ...]."""
        return [drop.start(len(self.frame)).to(self.vectors) for drop in self.drops]

    def framed(self, words: Tensor) -> Tensor:
        """Return vectors with those of marks and fillers put back."""
        return torch.where(self.free[..., None], words, self.vectors[self.frame])

    def mismatch(self, words: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Return the distance of vectors' gradient from the one observed, of each lane [K]."""
        lanes = (words, tuple(masks), self.frame, self.labels, dict(self.wanted), dict(self.counts))
        if self.vectorised:
            apart: Tensor = vmap(self._apart)(*lanes)
        else:
            each = [tree_map(lambda part, lane=lane: part[lane], lanes) for lane in range(len(words))]
            apart = torch.stack([self._apart(*one) for one in each])
        return apart / self.unit

    def _apart(
        self, words: Tensor, masks: tuple[Tensor, ...], frame: Tensor, labels: Tensor, wanted: Tensors, counts: Tensors
    ) -> Tensor:
        """Return the distance of one lane."""
        known = self.known
        own = dict(self.model.named_parameters())

        def loss(at: dict[str, Tensor]) -> Tensor:
            with fed_with(self.table, words), with_masks(self.drops, masks):
                outputs = functional_call(self.model, at, (frame,))
            return training_loss(known.loss)(outputs, labels, known.loss_reduction)

        found: Tensors = grad(loss)({name: own[name].detach() for name in wanted})
        sent = found if known.defence is None else known.defence.simulate(found, wanted)
        return self.distance(sent, wanted, counts)

    def read(self, words: Tensor) -> Tensor:
        """Return the ids [K, B, T] of the tokens whose embeddings vectors are closest to in direction."""
        table = torch.nn.functional.normalize(self.vectors, dim=1)
        likeness = torch.nn.functional.normalize(words.detach(), dim=-1) @ table.T
        likeness[..., sorted(self.tokeniser.special)] = -torch.inf
        return torch.where(self.free, likeness.argmax(-1), self.frame)


def problem_of(
    observations: Sequence[Observation],
    match: Match,
    seeds: Sequence[int],
    layers: int | None,
    drops: Callable[[nn.Module, Tensor], tuple[Drop, ...]] = lambda model, ids: (),
) -> TextProblem:
    """Return what is matched.

    Args:
        observations: of one model, of which the same is known.
        match: the distance.
        seeds: of what label rules draw.
        layers: match the gradients of the first so many blocks alone; all if None.
        drops: finds the calls of dropout whose masks are sought, in the model when it is fed ids.
    """
    first = observations[0]
    tokeniser, count = tokeniser_of(first), image_count(first)
    model = copy.deepcopy(attack_model(first))
    table = word_table(model, tokeniser.size)
    gradients = [estimated_gradient(one) for one in observations]
    names = [name for name in gradients[0] if name != table.name and within(name, layers)]
    if not names:
        raise CapabilityError("nothing but the embedding was sent: there is no gradient to match.", hint="Use `words`.")
    wanted = {name: torch.stack([one[name] for one in gradients]) for name in names}
    sizes = torch.stack([value.flatten(1).norm(dim=1) for value in wanted.values()])
    counts = dict(zip(names, (sizes > _SILENT * sizes.amax(0)).to(sizes), strict=True))
    kept = [name for name in names if bool(counts[name].any())]
    frame = torch.stack([_frame(one, tokeniser, count) for one in observations])
    problem = TextProblem(
        model,
        table,
        tokeniser,
        {name: wanted[name] for name in kept},
        {name: counts[name] for name in kept},
        torch.stack([labels_of(one, seed) for one, seed in zip(observations, seeds, strict=True)]),
        frame,
        ~torch.isin(frame, torch.tensor(sorted(tokeniser.special))),
        first.knowledge,
        DISTANCES[match],
        torch.ones(len(observations)).to(table.module.weight),
        drops(model, frame[0]),
    )
    return problem if _can_vectorise(problem) else replace(problem, vectorised=False)


def _can_vectorise(problem: TextProblem) -> bool:
    """Return whether the model runs with lanes; models that branch on what they are fed do not."""
    if len(problem.frame) == 1:
        return False
    try:
        with torch.no_grad():
            problem.mismatch(problem.vectors[problem.frame], problem.masks())
    except (RuntimeError, ValueError):
        return False
    return True


def _frame(observation: Observation, tokeniser: Tokeniser, count: int) -> Tensor:
    """Return ids with marks and fillers where texts of the known lengths have them; full length where none is known."""
    lengths = observation.knowledge.lengths
    sizes = [tokeniser.length] * count if lengths is None else lengths.tolist()
    word = next(one for one in range(tokeniser.size) if one not in tokeniser.special)
    frame = torch.full((count, observation.knowledge.input_shape[0]), FILLER)
    for place, size in enumerate(sizes):
        frame[place, :size] = word
        if tokeniser.start is not None:
            frame[place, 0] = tokeniser.start
        if tokeniser.end is not None:
            frame[place, size - 1] = tokeniser.end
    return frame


def within(name: str, layers: int | None) -> bool:
    """Return whether a parameter or module belongs to one of the first blocks, or to none of them."""
    if layers is None:
        return True
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return not numbers or numbers[0] < layers


def norm_of(problem: TextProblem) -> Tensor:
    """Return the mean length of the words' embeddings."""
    size: Tensor = problem.vectors.norm(dim=1).mean()
    return size
