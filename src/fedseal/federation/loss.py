"""The loss a client differentiates, and which the attacker recomputes on dummy data."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Classifier, Loss


def cross_entropy_loss(normalisation: Normalisation, reduction: Literal["mean", "sum"]) -> Loss:
    """Return the loss (model, batch) -> scalar: cross-entropy of the model on the normalised images."""

    def loss(model: Classifier, batch: Batch) -> Tensor:
        return F.cross_entropy(model(normalisation(batch.images)), batch.labels, reduction=reduction)

    return loss
