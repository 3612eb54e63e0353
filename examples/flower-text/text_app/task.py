"""What server and clients share: made-up notes that come with fedseal, and a small transformer that reads them."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.data.registry import DATASETS
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.fitting import fitting_model

NOTES = "text:notes?length=16&limit=400"
ENCODER = "text-encoder:width=64"
RANK = 24


@cache
def notes() -> TextDataset:
    """Return the notes; the tokeniser is made of public ones."""
    data = DATASETS.build(NOTES)
    assert isinstance(data, TextDataset)
    return data


def classifier() -> nn.Module:
    """Return the classifier, the same on every machine."""
    return fitting_model(ENCODER, notes(), "cross-entropy", 0)


def adapters() -> nn.Module:
    """Return the classifier with LoRA adapters on its attention; only these and the head are trained."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    chosen = LoraConfig(r=RANK, target_modules=["query", "key", "value"], modules_to_save=["head"])
    adapted: nn.Module = get_peft_model(classifier(), chosen)  # type: ignore[arg-type]
    return adapted


def load_model(*, adapted: bool) -> nn.Module:
    """Return the initial model."""
    return adapters() if adapted else classifier()


def client_batch(partition: int, size: int) -> Batch:
    """Return the notes of a client's one step."""
    return notes().batch(torch.arange(partition * size, (partition + 1) * size))
