"""The loss a client differentiates, and which the attacker recomputes on dummy data.

A scenario names it: `cross-entropy`, `bce`, `mse`, `next-token`, or `module:attribute` for a loss of one's own. What
the labels are follows from it: one class per image, a flag for each output, or a value for each. Reductions are
PyTorch's: a mean or a sum over all that the loss compares.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Classifier, Loss
from fedseal.core.errors import InputError, UsageError
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.core.plugins import is_reference, load_reference
from fedseal.core.specs import near_matches

Reduction: TypeAlias = Literal["mean", "sum"]
Target: TypeAlias = Literal["class", "flags", "values", "inputs"]
"""What a label is: a class [B], a flag for every output [B, K] in {0, 1}, or a value for every output [B, K];
or nothing, where what is learned are the inputs themselves."""

_SURE = 10.0
"""A logit that is as good as certain, for labels an attack starts from."""


class TrainingLoss(ABC):
    """A loss, and how an attacker searches for the labels it was computed with.

    Where labels are not known, one number per output is searched for with the images: `relaxed` makes of these what
    the loss can be computed with, `start` finds them for a guess, `read` rounds them to labels.
    """

    target: Target

    @abstractmethod
    def __call__(self, outputs: Tensor, target: Tensor, reduction: Reduction) -> Tensor:
        """Return the loss of outputs [B, K] with labels, or with what `relaxed` returned."""

    def relaxed(self, free: Tensor) -> Tensor:
        """Return the labels that free numbers [..., B, K] stand for, differentiably."""
        if self.target == "values":
            return free
        return free.sigmoid() if self.target == "flags" or free.shape[-1] == 1 else free.softmax(-1)

    def start(self, labels: Tensor, outputs: int) -> Tensor:
        """Return the free numbers [B, K] of labels."""
        if self.target == "values":
            return labels.float()
        flags = labels[:, None] if outputs == 1 and labels.ndim == 1 else labels
        if self.target == "class" and outputs > 1:
            return _SURE * F.one_hot(labels, outputs)
        return _SURE * (2 * flags.float() - 1)

    def read(self, free: Tensor) -> Tensor:
        """Return the labels that free numbers [B, K] are closest to."""
        if self.target == "values":
            return free
        if free.shape[-1] == 1:
            return (free[..., 0] > 0).long()
        return (free > 0).to(free) if self.target == "flags" else free.argmax(-1)

    def right(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the share of each image's labels [B] that outputs [B, K] get right; a value is never just right."""
        if self.target == "values":
            return outputs.new_full((len(outputs),), float("nan"))
        found = self.read(outputs)
        return (found == labels).to(outputs).reshape(len(outputs), -1).mean(1)


class CrossEntropy(TrainingLoss):
    """Softmax cross-entropy with classes [B] or shares [B, K]; one logit is a binary classifier's, as in `bce`."""

    target: Target = "class"

    def __call__(self, outputs: Tensor, target: Tensor, reduction: Reduction) -> Tensor:
        """Return the cross-entropy of logits."""
        if outputs.shape[1] == 1:
            return _logistic(outputs, target.to(outputs).reshape(-1, 1), reduction)
        return F.cross_entropy(outputs, target, reduction=reduction)


class BinaryCrossEntropy(TrainingLoss):
    """Logistic loss of every output with a flag of its own; of one logit with the classes 0 and 1."""

    target: Target = "flags"

    def __call__(self, outputs: Tensor, target: Tensor, reduction: Reduction) -> Tensor:
        """Return the logistic loss of logits."""
        return _logistic(outputs, target.to(outputs).reshape(outputs.shape), reduction)


class MeanSquaredError(TrainingLoss):
    """Squared distance of every output to a value of its own: a regression."""

    target: Target = "values"

    def __call__(self, outputs: Tensor, target: Tensor, reduction: Reduction) -> Tensor:
        """Return the squared error."""
        return F.mse_loss(outputs, target.to(outputs).reshape(outputs.shape), reduction=reduction)


class NextToken(TrainingLoss):
    """Cross-entropy of every token of a text with what the model expected there; the filler (id 0) does not count.

    Logits [B, T, tokens] at a place are compared with the token behind it; the last place has none.
    """

    target: Target = "inputs"

    def __call__(self, outputs: Tensor, target: Tensor, reduction: Reduction) -> Tensor:
        """Return the loss of logits [B, T, tokens] on the ids [B, T] that were fed."""
        if outputs.ndim != 3 or target.shape != outputs.shape[:2]:
            raise InputError(
                f"the loss next-token needs logits [B, T, tokens] of texts [B, T], the model answers "
                f"{list(outputs.shape)} to {list(target.shape)}.",
                hint="Use a model of text that predicts tokens, such as text-decoder:task=next-token.",
            )
        logits, following = outputs[:, :-1].flatten(0, 1), target[:, 1:].flatten()
        counted = (following != 0).to(logits)
        each = F.cross_entropy(logits, following, reduction="none") * counted
        return each.sum() if reduction == "sum" else each.sum() / counted.sum().clamp(min=1)

    def right(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the share of each text's [B] tokens that outputs [B, T, tokens] expected; `labels` are its ids."""
        found, following = outputs[:, :-1].argmax(-1), labels[:, 1:]
        counted = following != 0
        return ((found == following) & counted).sum(1).to(outputs) / counted.sum(1).clamp(min=1)


class OwnLoss(TrainingLoss):
    """A user's function (outputs, labels) -> one number, their mean, or one per image.

    Its attribute `target` says what labels are, if they are no classes: `flags` or `values`.
    """

    def __init__(self, name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        target: Any = getattr(function, "target", "class")
        if target not in ("class", "flags", "values"):
            raise UsageError(f"the loss {name} has the target {target!r}.", hint="Known: class, flags, values.")
        self.target = target
        self._name = name
        self._function = function

    def __call__(self, outputs: Tensor, target: Tensor, reduction: Reduction) -> Tensor:
        """Return the user's loss, reduced as the client does."""
        value = self._function(outputs, target)
        if not isinstance(value, Tensor) or value.ndim > 1 or (value.ndim == 1 and len(value) != len(outputs)):
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"the loss {self._name} answers {len(outputs)} images with {got}.",
                hint="It must return one number, or one per image.",
            )
        if value.ndim == 1:
            return value.mean() if reduction == "mean" else value.sum()
        return value if reduction == "mean" else value * len(outputs)


LOSSES: dict[str, TrainingLoss] = {
    CROSS_ENTROPY: CrossEntropy(),
    "bce": BinaryCrossEntropy(),
    "mse": MeanSquaredError(),
    "next-token": NextToken(),
}


@lru_cache(maxsize=32)
def training_loss(name: str) -> TrainingLoss:
    """Return the loss a scenario names; an own one is a function, a module, or a class of either."""
    if name in LOSSES:
        return LOSSES[name]
    if not is_reference(name):
        hint = f"{near_matches(name, LOSSES)} Your own is written package.module:attribute."
        raise UsageError(f"there is no loss called {name!r}.", hint=hint)
    value: Any = load_reference(name)
    value = value() if inspect.isclass(value) else value
    if not callable(value):
        raise InputError(f"{name} is {type(value).__name__}, not a loss.", hint="Write a function (outputs, labels).")
    if isinstance(value, nn.Module) and getattr(value, "reduction", "mean") == "sum":
        raise UsageError(f"the loss {name} sums over the batch.", hint="Return the mean; `loss_reduction` sums it.")
    return OwnLoss(name, value)


def client_loss(normalisation: Normalisation, reduction: Reduction, loss: str = CROSS_ENTROPY) -> Loss:
    """Return the loss (model, batch) -> scalar of the model on the normalised images."""
    measure = training_loss(loss)

    def value(model: Classifier, batch: Batch) -> Tensor:
        return measure(model(normalisation(batch.inputs)), compared_with(measure, batch), reduction)

    return value


def compared_with(loss: TrainingLoss, batch: Batch) -> Tensor:
    """Return what a loss compares a model's answer to a batch with: its labels, or its inputs."""
    return batch.inputs if loss.target == "inputs" else batch.labels


def cross_entropy_loss(normalisation: Normalisation, reduction: Reduction) -> Loss:
    """Return the client loss of a classifier."""
    return client_loss(normalisation, reduction)


def _logistic(outputs: Tensor, target: Tensor, reduction: Reduction) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, target, reduction=reduction)


def as_targets(labels: Tensor, classes: int, outputs: int, loss: str) -> Tensor:
    """Return a data set's labels as a loss compares them with so many outputs, or refuse what makes no sense.

    Args:
        labels: classes [N], whole numbers; or flags or values [N, K].
        classes: how many there are, or K.
        outputs: of the model.
        loss: its name.
    """
    kind = training_loss(loss).target
    if kind == "inputs":
        return labels
    if labels.ndim == 1 and kind != "values" and max(classes, outputs) < 2:
        raise InputError(
            "the data has one class: there is nothing to tell apart.",
            hint="Add images of another class, or give the model its real number of outputs.",
        )
    if labels.ndim == 1 and (kind == "class" or (kind == "flags" and outputs == 1)):
        if outputs >= classes or (outputs == 1 and classes == 2):
            return labels
        raise InputError(
            f"the data has {classes} classes, the model {outputs} output(s).",
            hint="Give the model as many outputs, or name the loss: `loss: bce` needs one for two classes.",
        )
    if labels.ndim == 1 and kind == "values" and outputs == 1:
        return labels.float()[:, None]
    if labels.ndim == 1 and outputs >= classes:
        return F.one_hot(labels, outputs).float()
    if kind == "class":
        words = "flags" if is_flags(labels) else "values"
        hint = "Set `loss: bce`." if words == "flags" else "Set `loss: mse`."
        raise InputError(f"the loss {loss} needs one class per image, the data has {classes} {words}.", hint=hint)
    if kind == "flags" and not is_flags(labels):
        raise InputError(f"the loss {loss} needs flags of 0 and 1, the data has values.", hint="Set `loss: mse`.")
    if outputs != classes:
        raise InputError(
            f"the data has {classes} {'flags' if kind == 'flags' else 'values'} per image, the model {outputs} "
            "output(s).",
            hint="Give the model one output for each.",
        )
    return labels


def wanted_outputs(labels: Tensor, classes: int, loss: str) -> int:
    """Return how many outputs a model that lets us choose should have for a data set's labels."""
    kind = training_loss(loss).target
    one = labels.ndim == 1 and (kind == "values" or (kind == "flags" and classes == 2))
    return 1 if one else classes


def is_flags(labels: Tensor) -> bool:
    """Tell whether labels [N, K] are flags."""
    return labels.ndim == 2 and bool(((labels == 0) | (labels == 1)).all())


def is_class(labels: Tensor) -> bool:
    """Tell whether labels are one class per image."""
    return labels.ndim == 1 and not torch.is_floating_point(labels)
