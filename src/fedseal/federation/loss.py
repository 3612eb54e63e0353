"""The loss a client differentiates, and which the attacker recomputes on dummy data."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Classifier, Loss


def classification_loss(logits: Tensor, target: Tensor, reduction: Literal["mean", "sum"]) -> Tensor:
    """Return the cross-entropy of logits [B, classes] with labels [B] or soft ones [B, classes].

    One logit is a binary classifier: the logistic loss, labels 0 and 1.
    """
    if logits.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits[:, 0], target.to(logits).reshape(-1), reduction=reduction)
    return F.cross_entropy(logits, target, reduction=reduction)


def cross_entropy_loss(normalisation: Normalisation, reduction: Literal["mean", "sum"]) -> Loss:
    """Return the loss (model, batch) -> scalar: cross-entropy of the model on the normalised images."""

    def loss(model: Classifier, batch: Batch) -> Tensor:
        return classification_loss(model(normalisation(batch.inputs)), batch.labels, reduction)

    return loss
