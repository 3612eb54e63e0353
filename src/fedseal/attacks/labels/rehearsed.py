"""Labels read as learned on rehearsals: how the last layer's rows look for known labels, through the defence itself.

No formula for labels survives every defence: pruning drops the row that gives iDLG's sign, noise drowns it, a rescaled
step has no magnitude. But the server can play clients with public images and look. Each class is a row of the last
layer's update, described by a few numbers that mean the same for every class; a kernel regression from these to the
count of that class, fitted on all rows of all rehearsed updates, reads counts off the observed one. Under DGP, for
instance, it finds by itself that the label's row is the one with the fewest survivors. Ours; no paper.

An attacker who knows the defence reads labels that way wherever it does better than the rule it was told to use, which
is decided on rehearsals too (`through_the_defence`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean

import torch
from torch import Tensor

from fedseal.attacks.labels.counts import round_to_sum
from fedseal.attacks.labels.guess import LabelGuess, guess_from_counts
from fedseal.attacks.labels.last_layer import output_names
from fedseal.attacks.labels.rules import LABEL_RULES, LabelRule
from fedseal.attacks.reading import image_count
from fedseal.core.errors import CapabilityError, FedsealError
from fedseal.core.identity import identity_of
from fedseal.core.modality import TEXT
from fedseal.core.observation import Observation, Update
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.metrics.labels import label_accuracy
from fedseal.models.structure import multiply_adds
from fedseal.preparation import remembered

UPDATES, HELD_BACK = 240, 60
"""Rehearsals to learn from, and others to choose by and to say how well it goes."""

MOST_WORK = 10**12
"""Multiply-adds that rehearsals may take: a minute or so of a core."""

_MOST_LANDMARKS = 600
_WIDTHS = (0.05, 0.2)
_RIDGES = (1e-4, 1e-2)

Names = tuple[str, str | None]
"""Of the last layer's weight and bias, the latter if there is one."""


@dataclass(frozen=True)
class Rehearsals:
    """Updates of public batches, as the server would see them.

    Attributes:
        rows: descriptions of the last layer's rows, [n, C, F].
        counts: of the labels behind them, [n, C].
        updates: the updates themselves, where they were kept.
    """

    rows: Tensor
    counts: Tensor
    updates: tuple[Tensors, ...] = ()


@dataclass(frozen=True)
class RowReader:
    """A regression from descriptions of rows to counts.

    Attributes:
        names: of the last layer's parameters.
        read: maps descriptions [C, F] to counts [C].
        accuracy: share of labels right in rehearsals held back, as multisets.
    """

    names: Names
    read: Callable[[Tensor], Tensor]
    accuracy: float

    def guess(self, observation: Observation) -> LabelGuess:
        """Return the labels of an update."""
        update = {name: tensor.unsqueeze(0) for name, tensor in observation.update.tensors.items()}
        counts = round_to_sum(self.read(describe_rows(update, self.names)[0]), image_count(observation))
        note = f"labels as learned on rehearsals of public images, where {self.accuracy:.0%} come out right"
        return guess_from_counts(counts.to(next(iter(update.values())).device), [note])


@dataclass
class Lesson:
    """What was learned for one model, defence and number of images, and the rehearsals that were held back."""

    reader: RowReader
    held: tuple[tuple[Observation, Tensor], ...]
    tried: dict[LabelRule, float] = field(default_factory=dict)

    def accuracy_of(self, rule: LabelRule) -> float:
        """Return the share of labels a rule reads right in the updates held back; one it refuses has none right."""
        if rule not in self.tried:
            self.tried[rule] = fmean(_share(rule, observation, labels) for observation, labels in self.held)
        return self.tried[rule]


@LABEL_RULES.register("rehearsed", Info("as learned on updates of public images, through the defence"))
def rehearsed(observation: Observation, seed: int) -> LabelGuess:
    """Return the labels that rehearsed updates with such last rows had."""
    knowledge = observation.knowledge
    if knowledge.rehearse is None or knowledge.auxiliary is None or len(knowledge.auxiliary) == 0:
        raise CapabilityError(
            "labels can be learned from rehearsals only with public data.",
            hint="Grant `public_data` under `attacker:`, or choose another label rule.",
        )
    return lesson_for(observation).reader.guess(observation)


def through_the_defence(observation: Observation, rule: LabelRule, seed: int) -> LabelGuess:
    """Return the labels by the better of a rule and what is learned, both tried on rehearsals of this defence."""
    if not can_rehearse(observation):
        return rule(observation, seed)
    lesson = lesson_for(observation)
    if lesson.accuracy_of(rule) >= lesson.reader.accuracy:
        return rule(observation, seed)
    return lesson.reader.guess(observation)


def can_rehearse(observation: Observation) -> bool:
    """Tell whether labels are to be learned here: public data, a view that serves every client, and not much work."""
    knowledge = observation.knowledge
    if knowledge.rehearse is None or knowledge.auxiliary is None or len(knowledge.auxiliary) == 0:
        return False
    if knowledge.modality == TEXT or (knowledge.defence is not None and knowledge.defence.personal):
        return False
    own = copy.deepcopy(observation.model).eval()
    work = multiply_adds(own, (image_count(observation), *knowledge.input_shape))
    return 3 * work * (UPDATES + HELD_BACK) <= MOST_WORK


def lesson_for(observation: Observation) -> Lesson:
    """Return what is learned for an observation's model and defence; the same for every target, and learned once."""
    knowledge = observation.knowledge
    assert knowledge.rehearse is not None
    assert knowledge.auxiliary is not None
    key = identity_of(
        weights=dict(observation.model.state_dict()),
        rehearsal=knowledge.rehearse.identity,
        images=image_count(observation),
        public=knowledge.auxiliary.inputs,
        view="" if knowledge.defence is None else knowledge.defence.describe(),
    )
    return remembered("labels", key, lambda: _learn(observation))


def _learn(observation: Observation) -> Lesson:
    names, images = output_names(observation), image_count(observation)
    learn = _rehearse(observation, names, UPDATES, "learn")
    held = _rehearse(observation, names, HELD_BACK, "held back", keep=True)
    readers = []
    for width, ridge in product(_WIDTHS, _RIDGES):
        read = _fit(learn, width, ridge)
        right = [
            int(torch.minimum(round_to_sum(read(rows), images), counts).sum())
            for rows, counts in zip(held.rows, held.counts, strict=True)
        ]
        readers.append(RowReader(names, read, sum(right) / (len(right) * images)))
    cases = [
        (replace(observation, update=Update(update, observation.update.kind)), guess_from_counts(counts).labels)
        for update, counts in zip(held.updates, held.counts, strict=True)
    ]
    return Lesson(max(readers, key=lambda reader: reader.accuracy), tuple(cases))


def _share(rule: LabelRule, observation: Observation, labels: Tensor) -> float:
    try:
        return label_accuracy(labels, rule(observation, 0).labels.cpu())
    except FedsealError:
        return 0.0


def describe_rows(update: Tensors, names: Names) -> Tensor:
    """Return what is said of each class's row of updates [n, ...]: [n, C, F], in double precision.

    Bias, sum, norm, extremes and share of entries that were sent, each as it is over the update's own size and beside
    the other classes' (its rank and standard score among them).
    """
    weight = update[names[0]].double().flatten(2)
    bias = weight.new_zeros(weight.shape[:2]) if names[1] is None else update[names[1]].double()
    size = weight.flatten(1).norm(dim=1).clamp(min=1e-30)[:, None]
    own = torch.stack(
        [
            bias / size,
            weight.sum(2) / size,
            weight.norm(dim=2) / size,
            weight.amin(2) / size,
            weight.amax(2) / size,
            weight.ne(0).double().mean(2),
            weight.sign().mean(2),
        ],
        dim=2,
    )
    spread = own.std(1, keepdim=True).clamp(min=1e-12)
    ranks = own.argsort(1).argsort(1).double() / max(own.shape[1] - 1, 1)
    return torch.cat([own, (own - own.mean(1, keepdim=True)) / spread, ranks], dim=2)


def _rehearse(observation: Observation, names: Names, updates: int, part: str, *, keep: bool = False) -> Rehearsals:
    """Play clients with public batches drawn at random."""
    knowledge = observation.knowledge
    public, rehearse = knowledge.auxiliary, knowledge.rehearse
    assert public is not None
    assert rehearse is not None
    source = generator(0, "label-rehearsal", part)
    chosen = torch.randint(len(public), (updates, image_count(observation)), generator=source)
    chosen = chosen.to(public.labels.device)
    labels = public.labels[chosen]
    counts = torch.stack([torch.bincount(row, minlength=knowledge.num_classes) for row in labels.cpu()])
    seed = int(torch.randint(2**31, (1,), generator=source))
    rows: list[Tensor] = []
    kept: list[Tensors] = []
    for chunk in rehearse(observation.model, public.inputs[chosen], labels, seed):
        rows.append(describe_rows(chunk, names).cpu())
        if keep:
            kept += [{name: part[i] for name, part in chunk.items()} for i in range(len(rows[-1]))]
    return Rehearsals(torch.cat(rows), counts, tuple(kept))


def _fit(learn: Rehearsals, width: float, ridge: float) -> Callable[[Tensor], Tensor]:
    """Fit counts by a Gaussian kernel on some of the rows, every row counted in (Nystroem)."""
    plain = learn.rows.flatten(0, 1)
    centre, scale = plain.mean(0), plain.std(0).clamp(min=1e-12)
    rows, counts = (plain - centre) / scale, learn.counts.double().flatten()
    order = torch.randperm(len(rows), generator=generator(0, "landmarks"))
    landmarks = torch.cat([rows[counts > 0], rows[order]])[:_MOST_LANDMARKS]
    factor = width / rows.shape[1]

    def kernel(x: Tensor) -> Tensor:
        return torch.exp(-factor * torch.cdist(x, landmarks).square())

    features = kernel(rows)
    gram = features.T @ features + ridge * len(rows) * kernel(landmarks) / len(landmarks)
    gram.diagonal().add_(1e-8 * len(rows))
    mean = counts.mean()
    weights = torch.linalg.solve(gram, features.T @ (counts - mean))

    def read(x: Tensor) -> Tensor:
        counted: Tensor = mean + kernel(((x.cpu() - centre) / scale).reshape(-1, rows.shape[1])) @ weights
        return counted

    return read
