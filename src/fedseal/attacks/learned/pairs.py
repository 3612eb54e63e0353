"""Rehearsed pairs: what the server would see of batches of its own public images, beside those images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.attacks.learned.sketch import Sketch
from fedseal.attacks.learned.words import WordVectors
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import Knowledge, Rehearse
from fedseal.core.observation import Observation
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.tensors import flatten

FEWEST = 32
"""Public images below which nothing can be learned, nor a choice be made on held back ones."""
_HELD_BACK, _MOST_HELD_BACK = 0.2, 400
_AT_ONCE = 512
_MOST_VALUES = 1 << 28
"""Pixels that are learned from, at most: a gigabyte."""


@dataclass(frozen=True)
class Pairs:
    """Updates and what is behind them.

    Attributes:
        sketches: of the updates, [n, D].
        images: [n, B C H W], each batch sorted by label, and by brightness within one.
        labels: [n, B], sorted.
    """

    sketches: Tensor
    images: Tensor
    labels: Tensor

    def first(self, count: int) -> Pairs:
        """Return the first `count` pairs."""
        return Pairs(self.sketches[:count], self.images[:count], self.labels[:count])

    def joined(self, other: Pairs) -> Pairs:
        """Return these pairs and the other ones."""
        return Pairs(
            torch.cat([self.sketches, other.sketches]),
            torch.cat([self.images, other.images]),
            torch.cat([self.labels, other.labels]),
        )


def public_of(knowledge: Knowledge, attack: str) -> tuple[Batch, Rehearse]:
    """Return the public images and the way to rehearse with them, or refuse in a sentence."""
    public, rehearse = knowledge.auxiliary, knowledge.rehearse
    if public is None:
        raise CapabilityError(
            f"{attack} learns from public images, and the threat model grants none.",
            hint="Set `attacker.public_data: true`, or choose an attack that needs none, such as `ig`.",
        )
    if rehearse is None:
        raise CapabilityError(
            f"{attack} plays clients itself, and the threat model does not say how they train.",
            hint="Grant `batch_size`, `local_steps` and `learning_rate` under `attacker:` in the scenario.",
        )
    return public, rehearse


def check_enough(public: Batch, images: int, attack: str) -> None:
    """Refuse too few public images for batches of `images`."""
    needed = max(FEWEST, 2 * images)
    if len(public) < needed:
        raise CapabilityError(
            f"{attack} needs at least {needed} public images for updates of {images}, got {len(public)}.",
            hint="Raise `public_fraction` or `attacker.public_images`, or choose an attack that needs none.",
        )


@dataclass(frozen=True)
class Stage:
    """What a rehearsal is played on.

    Attributes:
        model: as the server sent it.
        public: the attacker's images.
        rehearse: plays clients.
        count: images behind an update.
        sketch: shortens the updates.
        seed: of everything drawn.
        words: vectors that stand for texts; None of anything else.
    """

    model: nn.Module
    public: Batch
    rehearse: Rehearse
    count: int
    sketch: Sketch
    seed: int
    words: WordVectors | None = None

    def play(self, indices: Tensor, *path: str | int) -> Pairs:
        """Return one pair per public image at `indices`, each in a batch with random others of them."""
        values = self.public.inputs[0].numel() * (1 if self.words is None else self.words.width)
        indices = indices[: max(FEWEST, _MOST_VALUES // (self.count * values))]
        source = generator(self.seed, "batches", *path)
        columns = [indices[torch.randperm(len(indices), generator=source)] for _ in range(self.count)]
        order = torch.stack(columns, 1).to(self.public.labels.device)
        sketches, images, sorted_labels = [], [], []
        for start, part in enumerate(torch.split(order, _AT_ONCE)):
            fed, labels = self.public.inputs[part], self.public.labels[part]
            seed = derive_seed(self.seed, "rehearsed", *path, start)
            sketches += [self.sketch(updates) for updates in self.rehearse(self.model, fed, labels, seed)]
            shown = fed if self.words is None else self.words.of(fed)
            images.append(sorted_by_label(shown, labels).flatten(1).float())
            sorted_labels.append(labels.sort(1).values)
        return Pairs(torch.cat(sketches), torch.cat(images), torch.cat(sorted_labels))

    def split(self) -> tuple[Tensor, Tensor]:
        """Return indices of public images to learn from and of those held back to choose by."""
        order = torch.randperm(len(self.public), generator=generator(self.seed, "held-back"))
        held = min(_MOST_HELD_BACK, max(2, round(_HELD_BACK * len(order))))
        return order[held:], order[:held]


def sorted_by_label(images: Tensor, labels: Tensor) -> Tensor:
    """Sort batches [n, B, ...] by label, and by brightness within one: a batch has no order a server could learn.

    The same order is that of inferred labels, which come sorted.
    """
    brightness = images.flatten(2).mean(2).double()
    order = (labels.double() + brightness.clamp(0, 1) / 2).argsort(dim=1, stable=True)
    return torch.take_along_dim(images, order.reshape(*order.shape, *[1] * (images.ndim - 2)), 1)


def rehearsed_mismatch(observation: Observation, attack: str, inputs: Tensor, labels: Tensor) -> float:
    """Return 1 - cos between an update and the one rehearsed on samples [B, ...], defended where that is known."""
    _, rehearse = public_of(observation.knowledge, attack)
    way = rehearse.plain() if observation.knowledge.defence is None else rehearse
    (played,) = way(observation.model, inputs[None], labels[None], 0)
    a, b = flatten({name: value[0] for name, value in played.items()}), flatten(observation.update.tensors)
    return 1 - float(torch.nn.functional.cosine_similarity(a.double(), b.to(a).double(), dim=0))
