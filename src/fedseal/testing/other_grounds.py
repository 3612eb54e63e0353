"""Grounds of other data than images, on which the suites try defences: short texts, and rows of a table."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.core.seeds import generator
from fedseal.data.dataset import Dataset
from fedseal.data.registry import DATASETS
from fedseal.federation.fitting import fitting_model
from fedseal.testing.rounds import Ground

_LENGTH = 8


@cache
def _notes() -> Dataset:
    return DATASETS.build(f"text:notes?length={_LENGTH}&limit=60")


@cache
def _people() -> Dataset:
    return DATASETS.build("census:rows=60")


def _drawn(data: Dataset, seed: int, size: int) -> Batch:
    """Return `size` of the data, as a seed chooses them."""
    return data.batch(torch.randperm(len(data), generator=generator(seed, "drawn"))[:size])


@cache
def _encoder() -> nn.Module:
    return fitting_model("text-encoder:width=8,layers=1", _notes(), CROSS_ENTROPY, 0)


@cache
def _perceptron() -> nn.Module:
    return fitting_model("mlp:width=8", _people(), CROSS_ENTROPY, 0)


def _word_table() -> tuple[nn.Module, int]:
    size = int(_notes().inputs.max()) + 1
    return nn.Sequential(nn.Embedding(size, 2), nn.Flatten()), 2 * _LENGTH


def _first_layer() -> tuple[nn.Module, int]:
    return nn.Linear(_people().shape[0], 6), 6


TEXTS = Ground("text", _encoder, lambda seed, size: _drawn(_notes(), seed, size), _word_table)
"""Made-up notes of 8 tokens, and a transformer of one layer whose embedding is trained."""

TABLES = Ground("table", _perceptron, lambda seed, size: _drawn(_people(), seed, size), _first_layer)
"""Made-up people, and a network of two hidden layers."""
