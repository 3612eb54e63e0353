"""Small updates of clients who hold text, for tests of attacks on it."""

from __future__ import annotations

import torch
from torch import nn

from fedseal.core.batch import IDENTITY, Batch
from fedseal.core.knowledge import CROSS_ENTROPY, Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.loss import client_loss


def observed(
    model: nn.Module, data: TextDataset, count: int, loss: str = CROSS_ENTROPY, *, first: int = 0
) -> tuple[Batch, Observation]:
    """Return `count` texts from place `first` on, and what a server sees of a client that takes one step on them."""
    batch = data.batch(torch.arange(first, first + count))
    wanted = {name: value for name, value in model.named_parameters() if value.requires_grad}
    value = client_loss(IDENTITY, "mean", loss)(model, batch)
    gradient = torch.autograd.grad(value, list(wanted.values()))
    known = Knowledge(
        input_shape=data.shape,
        num_classes=len(data.classes),
        loss=loss,
        batch_size=count,
        labels=batch.labels,
        label_rule="true",
        modality=data.modality,
        encoding=data.encoding,
        lengths=(batch.inputs != 0).sum(1),
    )
    return batch, Observation(model, Update(dict(zip(wanted, gradient, strict=True))), known)
