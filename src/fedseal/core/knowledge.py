"""What the attacker is given beyond the update: named capabilities, printed with every result.

Nothing here is a default gift. A field that is None was not given; an attack that needs it is refused by the planner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from torch import Tensor, nn

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.encoding import Encoding
from fedseal.core.errors import CapabilityError
from fedseal.core.modality import IMAGE, TEXT
from fedseal.core.optimiser import PLAIN, Optimiser

if TYPE_CHECKING:
    from fedseal.core.defence import AttackerView

BNMode: TypeAlias = Literal["eval", "train-nostats", "train-exact-stats"]
"""How the client runs batch normalisation and what the server learns of it: with running statistics; with batch
statistics that stay private; with batch statistics the server also receives."""

CROSS_ENTROPY = "cross-entropy"
"""The loss of a classifier, and of clients of whom nothing else is said."""

LabelRule: TypeAlias = str
"""`true` (labels given), `unknown` (optimised with the images) or the name of an inference rule."""


class Rehearse(Protocol):
    """Plays clients with the attacker's own batches, as far as the attacker knows how they train and defend."""

    @property
    def identity(self) -> str:
        """The hash of what determines the updates beside model, batches and seed."""

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> Iterator[dict[str, Tensor]]:
        """Yield the updates of batches images [N, B, C, H, W], labels [N, B], in chunks [n, ...] per parameter."""

    def plain(self) -> Rehearse:
        """Return the rehearsal of an attacker who does not know the defence."""

    def describe(self) -> str:
        """Return what is rehearsed, in words."""


@dataclass(frozen=True)
class Knowledge:
    """The attacker's capabilities, one field each.

    Example:
        >>> import fedseal
        >>> known = fedseal.Knowledge(input_shape=(1, 8, 8), num_classes=10, batch_size=4)
        >>> "batch_size" in known.granted(), "learning_rate" in known.granted()
        (True, False)
        >>> known.ledger()["labels"]
        'not given; inferred from the update by the rule `identity`'

    Attributes:
        input_shape: C, H, W of an image, or the shape of what else a sample is; public, the server designs the model.
        num_classes: outputs of the model; public. One for each class, or one logit for two.
        loss: that clients minimise, by its name in a scenario.
        loss_reduction: how the client reduces its loss over the batch.
        bn_mode: see `BNMode`.
        label_rule: where labels come from, see `LabelRule`.
        batch_size: images behind the update.
        labels: the true labels [B], when `label_rule` is `true`.
        bn_statistics: exact batch mean and variance per normalisation layer.
        clients: clients behind the update; more than one where only their aggregate is seen.
        local_steps: steps behind the update, per client and pass over its batches.
        learning_rate: the client's learning rate.
        normalisation: between image and model input.
        auxiliary: public data of the same kind, disjoint from every client's.
        defence: what a defence-aware attacker knows of the defence; None for a naive one.
        rehearse: plays clients with the attacker's own images, defended as the attacker knows them to be.
        altered: how an active server changed the model it sent, in words; None for an honest one.
        modality: what clients hold.
        encoding: how inputs are made of it, where that is not plain.
        lengths: how many tokens each text has [B], marks included.
        local_epochs: passes over the batches; None is taken for one.
        optimiser: by which rule the client steps; None is taken for plain SGD.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    loss: str = CROSS_ENTROPY
    loss_reduction: Literal["mean", "sum"] = "mean"
    bn_mode: BNMode = "eval"
    label_rule: LabelRule = "identity"
    batch_size: int | None = None
    labels: Tensor | None = None
    bn_statistics: dict[str, tuple[Tensor, Tensor]] | None = None
    clients: int | None = None
    local_steps: int | None = None
    learning_rate: float | None = None
    normalisation: Normalisation | None = None
    auxiliary: Batch | None = None
    defence: AttackerView | None = None
    rehearse: Rehearse | None = None
    altered: str | None = None
    modality: str = IMAGE
    encoding: Encoding | None = None
    lengths: Tensor | None = None
    local_epochs: int | None = None
    optimiser: Optimiser | None = None

    @property
    def rule(self) -> Optimiser:
        """By which rule the attacker takes clients to step."""
        return self.optimiser or PLAIN

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """C, H, W of an image, for attacks that rebuild images."""
        if len(self.input_shape) != 3:
            raise CapabilityError(f"this rebuilds images, and the clients hold {self.modality}.")
        channels, height, width = self.input_shape
        return channels, height, width

    def granted(self) -> frozenset[str]:
        """Return the names of all capabilities that were given."""
        return frozenset(field.name for field in fields(self) if getattr(self, field.name) is not None)

    def _steps_by(self) -> str:
        return "not given; taken for plain SGD" if self.optimiser is None else self.optimiser.describe()

    @property
    def _noun(self) -> str:
        return "images" if self.modality == IMAGE else "samples"

    @property
    def _entering(self) -> str:
        if self.normalisation is not None and not self.normalisation.is_identity:
            return "mean and deviation given"
        return "none, images enter the model in [0, 1]" if self.modality == IMAGE else "none"

    def ledger(self) -> dict[str, str]:
        """Return every capability with what was given, in words a privacy officer can read."""
        return {
            "model": _describe_model(self.altered),
            f"{self.modality} shape": "x".join(map(str, self.input_shape)),
            **({} if self.encoding is None else {"encoding": self.encoding.describe()}),
            **({} if self.modality != TEXT else {"lengths of texts": "not given" if self.lengths is None else "given"}),
            "classes": str(self.num_classes),
            "loss": self.loss,
            "loss reduction": self.loss_reduction,
            "batch size": _given(self.batch_size),
            "labels": _describe_labels(self.label_rule, self.labels is not None, self.auxiliary is not None),
            "batch normalisation": _BN_WORDS[self.bn_mode],
            "clients in the update": _given(self.clients),
            "local steps": _describe_steps(self.local_steps, self.local_epochs, self.clients),
            "optimiser": self._steps_by(),
            "learning rate": _given(self.learning_rate),
            "normalisation": "not given" if self.normalisation is None else self._entering,
            "public data": "none" if self.auxiliary is None else f"{len(self.auxiliary)} {self._noun} no client holds",
            "defence": "not known" if self.defence is None else self.defence.describe(),
            "rehearsal": "none" if self.rehearse is None else self.rehearse.describe(),
        }


_BN_WORDS: dict[BNMode, str] = {
    "eval": "the client uses running statistics, which the server has",
    "train-nostats": "the client uses batch statistics, which the server does not see",
    "train-exact-stats": "the client uses batch statistics and the server receives them",
}


def _describe_model(altered: str | None) -> str:
    honest = "architecture, weights and loss, as any server has them"
    return honest if altered is None else f"{honest}; the server altered the model: {altered}"


def _given(value: float | None) -> str:
    return "not given" if value is None else f"{value:g}"


def _describe_steps(steps: int | None, epochs: int | None, clients: int | None) -> str:
    passes = "" if epochs in {None, 1} else f" in each of {epochs} passes over the same batches"
    if steps is None or (steps == 1 and not passes) or clients is None or clients == 1:
        return _given(steps) + passes
    whose = f" of each client{passes}, whose course nobody can follow: only the mean of {clients} clients is seen"
    return f"{steps:g}{whose}"


def _describe_labels(rule: LabelRule, given: bool, public: bool) -> str:
    if given:
        return "given"
    if rule == "unknown":
        return "not given; optimised together with the images"
    helped = ", which may use the public data" if public else ""
    return f"not given; inferred from the update by the rule `{rule}`{helped}"
