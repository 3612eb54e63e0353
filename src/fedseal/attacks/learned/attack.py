"""`learned`: learning to invert (Wu et al., UAI 2023). A map from updates to images, learned on rehearsed updates.

Threat model: passive server with public images. The defence is a black box, so the same mechanism is aware of every
defence, also of those that no formula inverts. Updates are sketched to at most 16,384 numbers. Departures: besides the
paper's network a kernel regression in closed form, which tells the images of a batch apart by their sorted labels. Of
texts it answers with vectors of words, each read as the nearest of the model's table.

Cost: one rehearsed round per training batch and the fit, once per model, defence and shape; a matrix product or a
forward pass per target.

Known breaks: public images unlike the private ones, since it can only answer with what it has seen the like of; noise
that swamps the sketch brings it to the mean image; batches whose labels repeat cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedseal.attacks.explaining import Mismatch
from fedseal.attacks.labels import infer_labels
from fedseal.attacks.learned.lessons import Decoder, Form, KernelLesson, NetworkLesson
from fedseal.attacks.learned.library import Lesson, learned
from fedseal.attacks.learned.network import NetworkPlan
from fedseal.attacks.learned.pairs import Stage, check_enough, public_of, rehearsed_mismatch
from fedseal.attacks.learned.sketch import Sketch
from fedseal.attacks.learned.words import vectors_of
from fedseal.attacks.prepared import PreparedAttack
from fedseal.core.attack import ATTACKS, Budget, Listener
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.modality import IMAGE, TABLE, TEXT
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.trainable import Trainable

_KINDS = {IMAGE: "images", TABLE: "records", TEXT: "texts"}
_FEWEST_FEATURES = 64
_FEATURES: dict[Form, int] = {"kernel": 16384, "network": 4096}


@ATTACKS.register(
    "learned",
    Info(
        "answer as learned from rehearsed updates of public images",
        paper="Wu et al., UAI 2023",
        threat="passive",
        needs=("batch_size", "auxiliary", "rehearse"),
    ),
)
class LearnedAttack(PreparedAttack):
    """Answers every update by one map, learned once per model, defence and public data.

    Args:
        form: a kernel, in closed form, or a network, for more data and for batches.
        features: numbers an update is sketched to, at most; 0 for 16,384, and 4,096 for a network.
        epochs: of a network's training.
        seed: of what is drawn in learning; targets have no part in it.
    """

    takes: ClassVar[tuple[str, ...]] = (IMAGE, TABLE, TEXT)

    def __init__(self, form: Form = "kernel", features: int = 0, epochs: int = 30, seed: int = 0) -> None:
        if features and features < _FEWEST_FEATURES:
            raise UsageError(f"learned needs at least {_FEWEST_FEATURES} features, got {features}.")
        if features < 0 or epochs < 1:
            raise UsageError(f"learned needs features >= 0 and epochs >= 1, got {features} and {epochs}.")
        self._form: Form = form
        self._features = features or _FEATURES[form]
        self._epochs = epochs
        self._seed = seed

    def trainables(self, model: nn.Module, knowledge: Knowledge) -> Iterator[Trainable[Any]]:
        """Yield what is learned."""
        self.check_knowledge(knowledge)
        yield self._lesson(self._stage(model, knowledge), knowledge.num_classes)

    def check_knowledge(self, knowledge: Knowledge) -> None:
        """Refuse what cannot be learned: no public images, too few, or no way to rehearse."""
        public, _ = public_of(knowledge, "learned")
        super().check_knowledge(knowledge)
        if knowledge.modality == TEXT and self._form == "network":
            raise CapabilityError(
                "learned answers texts by a kernel; its network is made for images and tables.",
                hint="Leave `form` out.",
            )
        check_enough(public, (knowledge.batch_size or 1) * (knowledge.local_steps or 1), "learned")

    def answers(
        self, observations: Sequence[Observation], budget: Budget, seeds: Sequence[int], listener: Listener | None
    ) -> list[Reconstruction]:
        """Learn, unless it was learned before, and answer."""
        first = observations[0]
        stage = self._stage(first.model, first.knowledge)
        decoder: Decoder = learned(self._lesson(stage, first.knowledge.num_classes))
        stacked = {name: torch.stack([o.update.tensors[name] for o in observations]) for name in first.update.tensors}
        answers = decoder.predict(stage.sketch(stacked))
        pixels = answers.shape[1] - stage.count * first.knowledge.num_classes
        values = answers[:, :pixels].reshape(len(observations), stage.count, -1)
        if stage.words is None:
            values = values.view(*values.shape[:2], *first.knowledge.input_shape)
            images = values.to(next(iter(first.parameters.values())).dtype)
        else:
            images = stage.words.nearest(values)
        if listener is not None:
            listener(1.0, images)
        kind, error = stage.public.modality, decoder.held_back_db
        there = f"{error:.1f} dB there" if kind == IMAGE else f"root mean square error {10 ** (-error / 20):.3f} there"
        what = _KINDS[kind]
        note = f"learned from {len(stage.public):,} public {what}, {decoder.describe()}: {there}"
        shares = answers[:, pixels:].reshape(len(observations), stage.count, -1)
        each = zip(observations, images, shares, seeds, strict=True)
        return [_answer(*one, decoder.ordered, note) for one in each]

    def _stage(self, model: nn.Module, knowledge: Knowledge) -> Stage:
        public, rehearse = public_of(knowledge, "learned")
        like = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        count = (knowledge.batch_size or 1) * (knowledge.local_steps or 1) * (knowledge.clients or 1)
        words = vectors_of(model, knowledge)
        return Stage(model, public, rehearse, count, Sketch(like, self._features, self._seed), self._seed, words)

    def _lesson(self, stage: Stage, classes: int) -> Lesson[Any]:
        options = {"form": self._form, "features": self._features, "seed": self._seed, "images": stage.count}
        if self._form == "kernel":
            return KernelLesson(stage, classes, options)
        return NetworkLesson(stage, classes, NetworkPlan(epochs=self._epochs), options)


def _answer(
    observation: Observation, images: Tensor, shares: Tensor, seed: int, ordered: bool, note: str
) -> Reconstruction:
    """Return one target's answer, its labels as given, or else inferred or learned, whichever explains it better."""
    knowledge = observation.knowledge
    of_text = knowledge.modality == TEXT
    mismatch = partial(rehearsed_mismatch, observation, "learned") if of_text else Mismatch(observation)
    candidates: list[tuple[Tensor, tuple[str, ...]]] = []
    if knowledge.labels is None:
        candidates.append((_placed(shares.argmax(1), shares, ordered), (note,)))
    if knowledge.labels is not None or knowledge.label_rule != "unknown":
        guess = infer_labels(observation, seed)
        candidates.append((_placed(guess.labels, shares, ordered), (note, *guess.notes)))
    objectives = [mismatch(images, labels) for labels, _ in candidates]
    best = min(range(len(candidates)), key=objectives.__getitem__)
    labels, said = candidates[best]
    return Reconstruction(images, labels, objectives[best], notes=said)


def _placed(labels: Tensor, shares: Tensor, ordered: bool) -> Tensor:
    """Return labels [B] in the order of the images: sorted, or where the learned shares [B, classes] want them."""
    if ordered:
        return labels.sort().values
    rows, columns = linear_sum_assignment(shares[:, labels].cpu().numpy(), maximize=True)
    placed = torch.empty_like(labels)
    placed[torch.as_tensor(rows)] = labels[torch.as_tensor(columns)]
    return placed
