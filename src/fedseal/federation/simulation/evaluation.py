"""How good a global model is."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.federation.loss import training_loss

CHUNK = 500
"""Images per forward pass; with batch statistics, also the images they are of."""


def evaluate(
    model: nn.Module,
    test: Batch,
    normalisation: Normalisation,
    *,
    batch_statistics: bool = False,
    loss: str = CROSS_ENTROPY,
) -> tuple[float, float]:
    """Return accuracy and mean loss of a model on a test set.

    Args:
        model: not changed.
        test: images in [0, 1] with labels.
        normalisation: between images and model.
        batch_statistics: normalise by the statistics of the test batches, for a model whose running ones nobody knows.
        loss: that is measured; what is right depends on it.
    """
    measured, measure = model, training_loss(loss)
    modes = [(module, module.training) for module in model.modules()]
    if batch_statistics:
        measured = copy.deepcopy(model)  # batch statistics leave a trace in the running ones
    measured.eval()
    if batch_statistics:
        for module in measured.modules():
            if isinstance(module, _BatchNorm):
                module.train()
    right, total = 0.0, 0.0
    with torch.no_grad():
        for images, labels in zip(torch.split(test.inputs, CHUNK), torch.split(test.labels, CHUNK), strict=True):
            logits = measured(normalisation(images))
            right += float(measure.right(logits, labels).sum())
            total += float(measure(logits, labels, "mean")) * len(labels)
    for module, training in modes:
        module.training = training
    return right / len(test), total / len(test)
