"""Gradient matching in the space of word embeddings: what TAG and LAMP share.

A text is searched for as one vector per token, which the model is fed instead of its embeddings; the gradient it gives
is moved towards the one observed. Marks and fillers are put back after every step, as their places follow from the
lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedseal.attacks.reading import attack_model, attack_parameters, estimated_gradient, image_count
from fedseal.attacks.text.reading import labels_of, tokeniser_of
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation
from fedseal.core.tensors import Tensors
from fedseal.core.tokeniser import FILLER, Tokeniser
from fedseal.federation.loss import training_loss
from fedseal.models.text.access import WordTable, fed_with, word_table

Distance: TypeAlias = Callable[[Tensors, Tensors], Tensor]
Match: TypeAlias = Literal["cosine", "l1l2"]


def l1l2(found: Tensors, wanted: Tensors, weight: float = 0.01) -> Tensor:
    """Return TAG's distance: the squared error and a little of the absolute one, over all tensors."""
    parts = [found[name] - wanted[name] for name in wanted]
    return torch.stack([part.square().sum() + weight * part.abs().sum() for part in parts]).sum()


def cosine(found: Tensors, wanted: Tensors) -> Tensor:
    """Return LAMP's distance: one minus the cosine, mean over tensors."""
    parts = [(found[name].flatten(), wanted[name].flatten()) for name in wanted]
    return torch.stack([1 - (a @ b) / (a.norm() * b.norm()).clamp(min=1e-12) for a, b in parts]).mean()


DISTANCES: dict[Match, Distance] = {"cosine": cosine, "l1l2": l1l2}


@dataclass(frozen=True)
class TextProblem:
    """One update, and how texts are compared with it.

    Attributes:
        model: the attacker's copy; parameters that were sent can be differentiated.
        table: its embedding of words.
        tokeniser: public.
        wanted: the gradients to be matched, by name.
        labels: given or inferred, [B].
        frame: ids [B, T] with marks and fillers at their places and any word elsewhere.
        free: where words stand, [B, T].
        observation: that is attacked.
        distance: of gradients.
        unit: in which it is counted.
    """

    model: nn.Module
    table: WordTable
    tokeniser: Tokeniser
    wanted: Tensors
    labels: Tensor
    frame: Tensor
    free: Tensor
    observation: Observation
    distance: Distance
    unit: float = 1.0

    @property
    def vectors(self) -> Tensor:
        """The embedding of every token, [V, D]."""
        return self.table.module.weight.detach()

    def start(self, source: torch.Generator) -> Tensor:
        """Return random vectors [B, T, D] of the embeddings' deviation, marks and fillers in place."""
        drawn = torch.randn(*self.frame.shape, self.vectors.shape[1], generator=source).to(self.vectors)
        return self.framed(self.vectors.std() * drawn)

    def framed(self, words: Tensor) -> Tensor:
        """Return vectors with those of marks and fillers put back."""
        return torch.where(self.free[..., None], words, self.vectors[self.frame])

    def gradient(self, words: Tensor, *, graph: bool) -> Tensors:
        """Return the gradient of vectors [B, T, D], as the client would have sent it."""
        known = self.observation.knowledge
        own = dict(self.model.named_parameters())
        sent = [own[name] for name in self.wanted]
        with fed_with(self.table, words):
            outputs = self.model(self.frame)
        loss = training_loss(known.loss)(outputs, self.labels, known.loss_reduction)
        found = torch.autograd.grad(loss, sent, create_graph=graph, allow_unused=True)
        named = {
            name: torch.zeros_like(value) if part is None else part
            for (name, value), part in zip(self.wanted.items(), found, strict=True)
        }
        return named if known.defence is None else known.defence.simulate(named, self.wanted)

    def mismatch(self, words: Tensor, *, graph: bool = True) -> Tensor:
        """Return the distance of vectors' gradient from the one observed."""
        return self.distance(self.gradient(words, graph=graph), self.wanted) / self.unit

    def read(self, words: Tensor) -> Tensor:
        """Return the ids [B, T] of the tokens whose embeddings vectors are closest to in direction."""
        table = torch.nn.functional.normalize(self.vectors, dim=1)
        likeness = torch.nn.functional.normalize(words.detach(), dim=2) @ table.T
        likeness[..., sorted(self.tokeniser.special)] = -torch.inf
        return torch.where(self.free, likeness.argmax(-1), self.frame)


def problem_of(observation: Observation, match: Match, seed: int, layers: int | None) -> TextProblem:
    """Return what is matched.

    Args:
        observation: of one client.
        match: the distance.
        seed: of what label rules draw.
        layers: match the gradients of the first so many blocks alone; all if None.
    """
    tokeniser, count = tokeniser_of(observation), image_count(observation)
    model = copy.deepcopy(attack_model(observation))
    table = word_table(model, tokeniser.size)
    gradient = estimated_gradient(observation)
    names = [name for name in gradient if name != table.name and _within(name, layers)]
    if not names:
        raise CapabilityError("nothing but the embedding was sent: there is no gradient to match.", hint="Use `words`.")
    for name, value in model.named_parameters():
        value.requires_grad_(name in attack_parameters(observation))
    frame = _frame(observation, tokeniser, count)
    free = ~torch.isin(frame, torch.tensor(sorted(tokeniser.special)))
    largest = max(float(gradient[name].norm()) for name in names)
    wanted = {name: gradient[name] for name in names if float(gradient[name].norm()) > 1e-9 * largest}
    labels = labels_of(observation, seed)
    return TextProblem(model, table, tokeniser, wanted, labels, frame, free, observation, DISTANCES[match])


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


def _within(name: str, layers: int | None) -> bool:
    """Return whether a parameter belongs to one of the first blocks, or to none of them."""
    if layers is None:
        return True
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return not numbers or numbers[0] < layers


def norm_of(problem: TextProblem) -> Tensor:
    """Return the mean length of the words' embeddings."""
    size: Tensor = problem.vectors.norm(dim=1).mean()
    return size
