"""A training scenario made real for one seed: data, partition, clients, test set and model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.devices import find_device
from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Spec, parse_spec
from fedseal.core.seeds import generator
from fedseal.data.dataset import Dataset, split_public
from fedseal.data.groups import keep_apart
from fedseal.data.partition import Partition, partition
from fedseal.data.registry import DATASETS
from fedseal.federation.fitting import fitting_model, with_targets
from fedseal.federation.loss import is_class
from fedseal.federation.simulation import FederationConfig
from fedseal.training.scenario import TrainingScenario


@dataclass(frozen=True)
class Federation:
    """A training scenario made real for one seed.

    Attributes:
        config: how clients train.
        model: the initial global model.
        partition: who holds what.
        clients: their data.
        test: what the global model is measured on.
        train: the data that was dealt.
        chance: accuracy of always answering the test set's most frequent class.
        normalisation: between images and model.
    """

    config: FederationConfig
    model: nn.Module
    partition: Partition
    clients: list[Dataset]
    test: Batch
    train: Dataset
    chance: float
    normalisation: Normalisation


def build_federation(
    scenario: TrainingScenario, seed: int, *, data_root: Path | None = None, device: str = "cpu"
) -> Federation:
    """Load and split the data, deal it out, and build the model of one seed."""
    where = find_device(device)
    train, test = _data(scenario, seed, data_root)
    if scenario.images is not None:
        if scenario.images > len(train):
            raise InputError(
                f"{scenario.images} images are more than the {len(train)} of {train.name}.", hint="Lower `images`."
            )
        train = train.subset(torch.randperm(len(train), generator=generator(seed, "images"))[: scenario.images])
    loss = scenario.federation.loss
    model = fitting_model(scenario.model, train, loss, seed)
    train, test = with_targets(train, model, loss), with_targets(test, model, loss)
    if not is_class(train.labels):
        raise InputError(
            f"a training is measured by its accuracy, and {loss} with {len(train.classes)} outputs has none.",
            hint="Train with one class per image; `fedseal audit` takes any loss.",
        )
    dealt = partition(train, scenario.partition, scenario.clients, seed)
    counts = torch.bincount(test.labels, minlength=len(train.classes))
    chance = float(counts.max() / counts.sum())
    if scenario.target_accuracy is not None and scenario.target_accuracy <= chance:
        raise UsageError(
            f"a target accuracy of {scenario.target_accuracy:.1%} is no more than chance: always giving the most "
            f"frequent answer scores {chance:.1%} on the test set.",
            hint="Raise `target_accuracy`, or leave it out: it is 90 % of the undefended accuracy then.",
        )
    return Federation(
        scenario.federation.model_copy(update={"seed": seed}),
        model.to(where),
        dealt,
        dealt.datasets(train),
        test.batch(),
        train,
        chance,
        train.normalisation if scenario.normalise else IDENTITY,
    )


def _data(scenario: TrainingScenario, seed: int, data_root: Path | None) -> tuple[Dataset, Dataset]:
    """Return the training and the test set, which share nobody."""
    spec = parse_spec(scenario.data)
    train = DATASETS.build(spec, data_root=data_root)
    if scenario.test is not None:
        test = DATASETS.build(scenario.test, data_root=data_root)
    elif spec.argument is None and "split" in DATASETS.find(spec).parameters and "split" not in spec.options:
        test = DATASETS.build(Spec(spec.name, {**spec.options, "split": "test"}), data_root=data_root)
    else:
        train, test = split_public(train, scenario.test_fraction, seed)
    return keep_apart(train, test.made_like(train))
