"""How good a global model is."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.federation.loss import compared_with, training_loss
from fedseal.metrics.classification import class_accuracies, macro_auc

CHUNK = 500
"""Images per forward pass; with batch statistics, also the images they are of."""


@dataclass(frozen=True)
class Measured:
    """What a model was worth on a test set.

    Attributes:
        accuracy: share of right answers.
        loss: mean over the images.
        auc: area under the ROC curve, mean of one class against the rest; None where it is not defined.
        class_accuracy: share of right answers for each class; None for a class without images, empty without classes.
    """

    accuracy: float
    loss: float
    auc: float | None
    class_accuracy: tuple[float | None, ...]


def evaluate(
    model: nn.Module,
    test: Batch,
    normalisation: Normalisation,
    *,
    batch_statistics: bool = False,
    loss: str = CROSS_ENTROPY,
) -> Measured:
    """Return accuracy, in all and per class, mean loss and AUC of a model on a test set.

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
    answers, hits = [], []
    with torch.no_grad():
        wanted = compared_with(measure, test)
        for images, labels in zip(torch.split(test.inputs, CHUNK), torch.split(wanted, CHUNK), strict=True):
            logits = measured(normalisation(images))
            hits.append(measure.right(logits, labels))
            answers.append(logits)
            right += float(hits[-1].sum())
            total += float(measure(logits, labels, "mean")) * len(labels)
    for module, training in modes:
        module.training = training
    accuracy, mean = right / len(test), total / len(test)
    if wanted.ndim != 1 or wanted.is_floating_point():  # several labels or values: there are no classes
        return Measured(accuracy, mean, None, ())
    logits = torch.cat(answers)
    classes = class_accuracies(torch.cat(hits).bool(), test.labels, max(2, logits[0].numel()))
    return Measured(accuracy, mean, macro_auc(logits, test.labels), classes)
