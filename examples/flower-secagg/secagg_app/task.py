"""What server and clients share: a LeNet and digits that come inside a package, so that nothing is downloaded."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.models.registry import build_model

SHAPE = (1, 28, 28)
CLASSES = 10
MODEL = "lenet-relu"
SEED = 0
TEST_EVERY = 10


def load_model() -> nn.Module:
    """Return the initial model, the same on every machine."""
    return build_model(MODEL, input_shape=SHAPE, num_classes=CLASSES, seed=SEED)


@cache
def _digits() -> Batch:
    data = DATASETS.build("digits").batch()
    order = torch.randperm(len(data), generator=generator(SEED, "order"))
    return Batch(data.images[order], data.labels[order])


def test_data() -> Batch:
    """Return the digits no client has."""
    data = _digits()
    return Batch(data.images[::TEST_EVERY], data.labels[::TEST_EVERY])


def client_data(partition: int, partitions: int) -> Batch:
    """Return a client's own digits."""
    data = _digits()
    own = torch.arange(len(data))
    own = own[own % TEST_EVERY != 0][partition::partitions]
    return Batch(data.images[own], data.labels[own])


def client_batches(data: Batch, partition: int, server_round: int, steps: int, size: int) -> list[Batch]:
    """Return the batches of a client's round."""
    order = torch.randperm(len(data), generator=generator(SEED, "batches", partition, server_round))
    return [Batch(data.images[part], data.labels[part]) for part in torch.split(order[: steps * size], size)]


def accuracy(model: nn.Module, data: Batch) -> float:
    """Return the share of images the model classifies right."""
    with torch.no_grad():
        return float((model(data.images).argmax(1) == data.labels).float().mean())
