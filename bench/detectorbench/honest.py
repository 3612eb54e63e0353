"""Honest checkpoints: several models on embedded data, from initialisation to trained, and what the detector reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch.nn import functional as F

from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.detection.detector import detect
from fedseal.federation.fitting import fitting_model

MODELS = (
    "mlp",
    "mlp:width=64,depth=1",
    "lenet",
    "lenet-relu",
    "convbn",
    "convnet:width=4",
    "resnet10:width=8",
    "vit-tiny:width=48,depth=2",
    "vit-tiny:width=48,heads=2,depth=2,adapters=64",
)
DATA = ("digits", "faces:size=24")
TEXT_MODELS = ("text-encoder:width=48", "text-encoder:width=32,layers=1,heads=4")
TEXTS = "text:notes?length=16&limit=400"
PAIRS = (*product(MODELS, DATA), *product(TEXT_MODELS, (TEXTS,)))
STAGES = (0, 3, 10, 30, 100, 200)
TRAINED_WITH, ANSWERED_WITH = 32, 16
LEARNING_RATE, MOMENTUM = 0.05, 0.9
"""For every network, also for those that die or diverge at that rate."""


@dataclass(frozen=True)
class Checkpoint:
    """One honest model and what was read from it.

    Attributes:
        model, data, seed, step: which.
        values: by check.
        dsnr: the largest of its layers.
        died: whether the detector found that it died in training.
    """

    model: str
    data: str
    seed: int
    step: int
    values: dict[str, float]
    dsnr: float
    died: bool


def checkpoints(name: str, data: str, seeds: range) -> Iterator[Checkpoint]:
    """Train a model on a data set with every seed, and read it at every stage.

    Even seeds answer with batch statistics, odd ones with running ones. Training that diverges to NaN ends there: the
    detector refuses such a model as no model at all.
    """
    dataset = DATASETS.build(data)
    for seed in seeds:
        model = fitting_model(name, dataset, CROSS_ENTROPY, seed)
        optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        source = generator(seed, "honest", name)
        for step in range(STAGES[-1] + 1):
            if step in STAGES:
                if not all(bool(p.isfinite().all()) for p in model.parameters()):
                    break
                model.train(seed % 2 == 0)
                batch = dataset.batch(_draw(len(dataset), ANSWERED_WITH, source))
                found = detect(model, batch, normalisation=dataset.normalisation)
                values = {reading.check: reading.value for reading in found.readings}
                dsnr = max(found.dsnr.values())
                yield Checkpoint(name, data, seed, step, values, dsnr, found.died_at is not None)
            model.train()
            batch = dataset.batch(_draw(len(dataset), TRAINED_WITH, source))
            loss = F.cross_entropy(model(dataset.normalisation(batch.inputs)), batch.labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def _draw(size: int, count: int, source: torch.Generator) -> torch.Tensor:
    return torch.randperm(size, generator=source)[:count]
