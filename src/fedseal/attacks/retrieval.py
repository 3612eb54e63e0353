"""`retrieval`: the public images, records or texts whose updates explain the observed one best.

The right control where data sets hold near-duplicates: an image an attacker can look up need not be rebuilt. Threat
model: passive server with public images. Every public image is rehearsed alone; one image behind an update is answered
by the highest cosine, several by orthogonal matching pursuit (Pati et al. 1993) over the single images' updates, as a
batch's gradient is the mean of its images'. Sketches find candidates, whole updates decide.

Cost: one rehearsed round per public image, then products of sketches; exact updates of the candidates only.

Known breaks: data without near-duplicates in public hands: then its answer is the nearest neighbour at best. Noise
above the differences between public updates, and many images per update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedseal.attacks.explaining import Mismatch
from fedseal.attacks.learned.library import Lesson, learned
from fedseal.attacks.learned.pairs import check_enough, public_of, rehearsed_mismatch
from fedseal.attacks.learned.sketch import Sketch, unit
from fedseal.attacks.prepared import PreparedAttack
from fedseal.attacks.reading import image_count
from fedseal.core.attack import ATTACKS, Budget, Listener
from fedseal.core.batch import Batch
from fedseal.core.knowledge import Knowledge
from fedseal.core.modality import IMAGE, TABLE, TEXT
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.trainable import Saved, Trainable, Unfinished
from fedseal.core.watcher import Report

_FEATURES = 16384
_KINDS = {IMAGE: "images", TABLE: "records", TEXT: "texts"}
_SHORTLIST = 16
"""Candidates by sketches that are compared by whole updates."""


@ATTACKS.register(
    "retrieval",
    Info(
        "the public images, records or texts whose updates are most similar",
        threat="passive",
        needs=("batch_size", "auxiliary", "rehearse"),
    ),
)
class RetrievalAttack(PreparedAttack):
    """Looks the update up among those of the public images."""

    any_loss: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = (IMAGE, TABLE, TEXT)

    def check_knowledge(self, knowledge: Knowledge) -> None:
        """Refuse a search among nothing."""
        public, _ = public_of(knowledge, "retrieval")
        super().check_knowledge(knowledge)
        check_enough(public, knowledge.batch_size or 1, "retrieval")

    def answers(
        self, observations: Sequence[Observation], budget: Budget, seeds: Sequence[int], listener: Listener | None
    ) -> list[Reconstruction]:
        """Rehearse all public images, unless it was done before, and look every update up."""
        first = observations[0]
        public, _ = public_of(first.knowledge, "retrieval")
        sketch = Sketch(first.update.tensors, _FEATURES)
        known = [learned(shelf) for shelf in self.trainables(first.model, first.knowledge)]
        found = [_look_up(observation, public, known, sketch) for observation in observations]
        if listener is not None:
            listener(1.0, torch.stack([images for images, _, _ in found]))
        notes = (f"looked up among {len(public):,} public {_KINDS[public.modality]}",)
        return [Reconstruction(images, labels, value, notes=notes) for images, labels, value in found]

    def trainables(self, model: nn.Module, knowledge: Knowledge) -> Iterator[Trainable[Any]]:
        """Yield the updates that are looked up among."""
        self.check_knowledge(knowledge)
        public, rehearse = public_of(knowledge, "retrieval")
        aware = knowledge.defence is not None
        yield from (_Shelf(model, public, way, {}) for way in (rehearse.plain(), *([rehearse] if aware else [])))


class _Shelf(Lesson[Tensors]):
    """The public images' updates as unit vectors `known` [n, D], and what each entry was divided by, `scales` [D]."""

    kind: ClassVar[str] = "retrieval"

    @property
    def title(self) -> str:
        return f"updates of {len(self.public):,} public {_KINDS[self.public.modality]}"

    @property
    def sketch(self) -> Sketch:
        return Sketch({name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}, _FEATURES)

    def fit(self, report: Report, unfinished: Unfinished) -> Tensors:
        sketch = self.sketch
        stream = self.rehearse(self.model, self.public.inputs[:, None], self.public.labels[:, None], 0)
        known = torch.cat([sketch(updates) for updates in stream])
        scales = tensor_scales(known, sketch.lengths)
        return {"known": unit(known / scales), "scales": scales}

    def save(self, trained: Tensors) -> Saved:
        return Saved(trained)

    def load(self, saved: Saved) -> Tensors:
        return saved.tensors


def _look_up(
    observation: Observation, public: Batch, libraries: Sequence[Tensors], sketch: Sketch
) -> tuple[Tensor, Tensor, float]:
    """Return the images, labels and mismatch of what explains the update best among every library's candidates.

    One who knows the defence searches among updates with it and without it: it may hide more than it explains.
    """
    sketched = sketch({name: value[None] for name, value in observation.update.tensors.items()})
    count, candidates = image_count(observation), dict[tuple[int, ...], None]()
    for library in libraries:
        seen = unit(sketched / library["scales"])[0]
        if count == 1:
            nearest = (library["known"] @ seen).topk(min(_SHORTLIST, len(public))).indices
            candidates |= dict.fromkeys((index,) for index in nearest.tolist())
        else:
            candidates[tuple(pursue(seen, library["known"], count))] = None
    found = []
    mismatch = (
        Mismatch(observation) if public.modality != TEXT else partial(rehearsed_mismatch, observation, "retrieval")
    )
    for chosen in candidates:
        inputs, labels = public.inputs[list(chosen)], public.labels[list(chosen)]
        found.append((inputs, labels, mismatch(inputs, labels)))
    return min(found, key=lambda one: one[2])


def tensor_scales(sketches: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return for each entry [D] the mean norm of its tensor's range over sketches [n, D].

    Divided by it, layers count alike, and sums of updates remain sums.
    """
    norms = [torch.linalg.vector_norm(part, dim=1).mean() for part in torch.split(sketches, list(lengths), 1)]
    safe = [norm if float(norm) > 0 else torch.ones_like(norm) for norm in norms]
    return torch.cat([scale.expand(length) for scale, length in zip(safe, lengths, strict=True)])


def pursue(seen: Tensor, known: Tensor, count: int) -> list[int]:
    """Return the indices of `count` unit vectors `known` [n, D] that together explain `seen` [D], greedily.

    Each step takes the one most similar to what is left, and fits all that were taken anew.
    """
    chosen: list[int] = []
    left = seen
    for _ in range(count):
        similar = known @ left
        similar[chosen] = -torch.inf
        chosen.append(int(similar.argmax()))
        taken = known[chosen].double()
        gram = taken @ taken.T + 1e-9 * torch.eye(len(chosen), dtype=torch.double, device=known.device)
        weights = torch.linalg.solve(gram, taken @ seen.double())
        left = (seen.double() - weights @ taken).to(seen)
    return chosen
