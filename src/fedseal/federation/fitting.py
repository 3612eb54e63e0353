"""A model and the data it is trained on, made to fit under one loss.

How many outputs a model has is its own affair: a factory that asks is told what the data and the loss call for, any
other is taken as it is, as long as the loss can be computed.
"""

from __future__ import annotations

from itertools import chain, count, islice

from torch import nn

from fedseal.data.dataset import Dataset
from fedseal.federation.loss import as_targets, wanted_outputs
from fedseal.models.registry import build_model, output_size


def fitting_model(spec: str, dataset: Dataset, loss: str, seed: int) -> nn.Module:
    """Build the model for a data set and a loss; `seed` determines its random weights."""
    wanted = wanted_outputs(dataset.labels, len(dataset.classes), loss)
    return build_model(
        spec,
        input_shape=dataset.shape,
        num_classes=wanted,
        seed=seed,
        exact=False,
        probe=dataset.probe(),
        encoding=dataset.encoding,
    )


def with_targets(dataset: Dataset, model: nn.Module, loss: str) -> Dataset:
    """Return the data with labels as the loss compares them with the model's outputs."""
    outputs = output_size(model, dataset.probe())
    labels = as_targets(dataset.labels, len(dataset.classes), outputs, loss)
    if labels is dataset.labels:
        return dataset
    names = tuple(islice(chain(dataset.classes, (f"output {place}" for place in count())), outputs))
    return dataset.relabelled(labels, names)
