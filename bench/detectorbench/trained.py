"""Models that SEER trained, as `bench/lids.py` trains them, and what a client reads from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
import yaml

from fedseal.core.batch import Batch
from fedseal.core.seeds import generator
from fedseal.detection.detector import detect
from lids import Bench, Experiment

BATCHES = 16


@dataclass(frozen=True)
class Trained:
    """What clients read from one trained weapon.

    Attributes:
        property: of the image it isolates.
        adaptive: whether it was trained on LIDS's batches.
        flagged: share of batches with an alarm.
        checks: how often each raised it.
        values: the least value of each check over the batches.
        dsnr: the median over batches of the largest D-SNR of a layer.
    """

    property: str
    adaptive: bool
    flagged: float
    checks: dict[str, int]
    values: dict[str, float]
    dsnr: float


def trained_weapons(scenario: Path, data_root: Path | None) -> Iterator[Trained]:
    """Let clients of a LIDS experiment look at every attacker it has; what is not in the cache is trained."""
    experiment = Experiment.model_validate(yaml.safe_load(scenario.read_text()))
    bench = Bench(experiment, Path(), data_root, None)
    client = bench.parts.client
    source = generator(experiment.seed, "detector-seer")
    places = torch.stack(
        [torch.randperm(len(client), generator=source)[: experiment.batch_size] for _ in range(BATCHES)]
    )
    for kind, adaptive in product(experiment.properties, (False, True)):
        model = bench.attacker(kind, adaptive).model.train()
        found = [detect(model, Batch(client.images[place], client.labels[place])) for place in places]
        least: dict[str, float] = {}
        for reading in (reading for one in found for reading in one.readings):
            least[reading.check] = min(reading.value, least.get(reading.check, reading.value))
        yield Trained(
            kind,
            adaptive,
            sum(one.suspicious for one in found) / len(found),
            dict(Counter(reading.check for one in found for reading in one.alarms)),
            least,
            float(torch.tensor([max(one.dsnr.values()) for one in found]).median()),
        )
