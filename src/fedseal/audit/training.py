"""Training a federation under each defence: twins of one seed share data, partition, weights, sampling and batches.

Every round is in the store as soon as it ended; a checkpoint beside it lets a killed run go on, and what has ended is
never trained again. A defence that the set-up does not allow is recorded as refused, and the others go on.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedseal._version import VERSION
from fedseal.audit.fingerprint import file_hashes
from fedseal.audit.setup import find_device
from fedseal.audit.store import Store
from fedseal.audit.training_scenario import TrainingScenario
from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.errors import CapabilityError, FedsealError, InputError, StorageError, UsageError
from fedseal.core.hashing import hash_json, hash_tensors
from fedseal.core.registry import Spec, parse_spec
from fedseal.core.seeds import generator
from fedseal.data.dataset import ImageDataset, split_public
from fedseal.data.partition import Partition, partition
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.simulation import FederationConfig, History, Listener, RoundRecord, simulate
from fedseal.metrics.intervals import Interval, bootstrap_mean
from fedseal.metrics.utility import pmm_over_seeds, reached_target
from fedseal.models.registry import build_model

_TARGET_SHARE = 0.9


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
    clients: list[ImageDataset]
    test: Batch
    train: ImageDataset
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
    dealt = partition(train, scenario.partition, scenario.clients, seed)
    model = build_model(scenario.model, input_shape=train.shape, num_classes=len(train.classes), seed=seed)
    counts = torch.bincount(test.labels, minlength=len(train.classes))
    return Federation(
        scenario.federation.model_copy(update={"seed": seed}),
        model.to(where),
        dealt,
        dealt.datasets(train),
        test.batch(),
        train,
        float(counts.max() / counts.sum()),
        train.normalisation if scenario.normalise else IDENTITY,
    )


def _data(scenario: TrainingScenario, seed: int, data_root: Path | None) -> tuple[ImageDataset, ImageDataset]:
    """Return the training and the test set."""
    spec = parse_spec(scenario.data)
    train = DATASETS.build(spec, data_root=data_root)
    if scenario.test is not None:
        test = DATASETS.build(scenario.test, data_root=data_root)
    elif "split" in DATASETS.entry(spec.name).parameters and spec.argument is None and "split" not in spec.options:
        test = DATASETS.build(Spec(spec.name, {**spec.options, "split": "test"}), data_root=data_root)
    else:
        train, test = split_public(train, scenario.test_fraction, seed)
    if test.shape != train.shape or len(test.classes) != len(train.classes):
        raise InputError(
            f"the test set {test.name} has images {list(test.shape)} of {len(test.classes)} classes, {train.name} has "
            f"{list(train.shape)} of {len(train.classes)}.",
            hint="Both must be of one kind.",
        )
    return train, test


@dataclass(frozen=True)
class Training:
    """One defence trained with one seed.

    Attributes:
        defence: its spec.
        seed: of the run.
        history: as far as it went; None if it was refused before the first round.
        refused: why it cannot be trained.
        failed: whether it broke, rather than being ruled out by the set-up.
    """

    defence: str
    seed: int
    history: History | None
    refused: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Utility:
    """What a defence costs, over the seeds.

    Attributes:
        defence: its spec.
        trainings: one per seed that was trained.
        refused: why it was not.
        accuracy: of the last measurement.
        pmm: against the undefended twins, in per cent.
        rounds: to the target, over the runs that reach it.
        reached: how many runs do.
        bytes_up: per client and round.
        seconds: per round.
        epsilon: largest of the seeds, where one is accounted.
        dropped: uploads refused, dropouts not counted.
    """

    defence: str
    trainings: tuple[Training, ...]
    refused: str = ""
    accuracy: Interval | None = None
    pmm: Interval | None = None
    rounds: Interval | None = None
    reached: int = 0
    bytes_up: float | None = None
    seconds: float | None = None
    epsilon: float | None = None
    dropped: int = 0

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """Mean accuracy over the seeds after so many rounds."""
        curves = [dict(t.history.curve) for t in self.trainings if t.history is not None]
        shared = [number for number in curves[0] if all(number in curve for curve in curves)] if curves else []
        return tuple((number, sum(curve[number] for curve in curves) / len(curves)) for number in shared)


@dataclass(frozen=True)
class TrainingRun:
    """All trainings of a scenario.

    Attributes:
        directory: where they are.
        scenario: what was asked for.
        trainings: per defence and seed, as far as they went.
        counts: of the first seed's partition: images per client and class.
        classes: their names.
        note: on the partition.
        test_images: size of the test set.
        chance: accuracy of always giving the most frequent answer.
        environment: versions and hashes.
        command: that reproduces it.
    """

    directory: Path
    scenario: TrainingScenario
    trainings: tuple[Training, ...]
    counts: tuple[tuple[int, ...], ...]
    classes: tuple[str, ...]
    note: str
    test_images: int
    chance: float
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""

    @cached_property
    def target(self) -> float | None:
        """The accuracy whose rounds are counted: the scenario's, or a share of the undefended twins' mean."""
        if self.scenario.target_accuracy is not None:
            return self.scenario.target_accuracy
        plain = self._histories("none")
        return _TARGET_SHARE * sum(h.accuracy for h in plain.values()) / len(plain) if plain else None

    @cached_property
    def utilities(self) -> tuple[Utility, ...]:
        """What each defence costs, in the scenario's order."""
        return tuple(self._utility(defence) for defence in self.scenario.defences)

    def _histories(self, defence: str) -> dict[int, History]:
        return {
            t.seed: t.history
            for t in self.trainings
            if t.defence == defence
            and t.history is not None
            and len(t.history.rounds) == self.scenario.federation.rounds
        }

    def _utility(self, defence: str) -> Utility:
        own, plain = self._histories(defence), self._histories("none")
        trainings = tuple(t for t in self.trainings if t.defence == defence)
        if not own:
            return Utility(defence, trainings, next((t.refused for t in trainings if t.refused), "not trained yet"))
        pairs = [(own[seed].accuracy, plain[seed].accuracy) for seed in own if seed in plain]
        answers = sum(len(record.clients) for history in own.values() for record in history.rounds)
        rounds = sum(len(history.rounds) for history in own.values())
        reached = reached_target([h.curve for h in own.values()], self.target) if self.target is not None else (None, 0)
        epsilons = [h.epsilon for h in own.values() if h.epsilon is not None]
        return Utility(
            defence,
            trainings,
            "",
            bootstrap_mean([history.accuracy for history in own.values()]),
            pmm_over_seeds([a for a, _ in pairs], [b for _, b in pairs])
            if pairs and all(b for _, b in pairs)
            else None,
            *reached,
            sum(history.bytes_up for history in own.values()) / answers if answers else None,
            sum(history.seconds for history in own.values()) / rounds,
            max(epsilons, default=None),
            sum(d.reason != "did not answer" for history in own.values() for _, d in history.dropped),
        )


class TrainingObserver:
    """Watches trainings, for display; it can change nothing. This one shows nothing."""

    def planned(self, trainings: int, rounds: int) -> None:
        """Take the number of trainings, and of rounds of each."""

    def started(self, defence: str, seed: int, done: int) -> None:
        """Take a training that starts, or goes on after so many rounds."""

    def advanced(self, record: RoundRecord) -> None:
        """Take a round of it."""

    def ended(self, training: Training) -> None:
        """Take what came of it."""


class _Recorder(Listener):
    """Puts every round into the store as soon as it ended."""

    def __init__(self, store: Store, key: str, observer: TrainingObserver) -> None:
        self._store, self._key, self._observer = store, key, observer

    def finished(self, record: RoundRecord, rounds: int) -> None:
        self._store.save_rounds(self._key, [record])
        self._observer.advanced(record)


def run_training(
    scenario: TrainingScenario,
    directory: Path,
    *,
    data_root: Path | None = None,
    device: str = "cpu",
    workers: int = 1,
    command: str = "fedseal train",
    observer: TrainingObserver | None = None,
) -> TrainingRun:
    """Train a scenario under all its defences and seeds, as far as `directory` does not hold it, and return the run.

    Args:
        scenario: what to train.
        directory: store and checkpoints; running the same scenario there again resumes.
        data_root: where local data sets lie.
        device: where clients train.
        workers: clients trained at once, one thread each; no number depends on it.
        command: what to print as the way to reproduce the run.
        observer: told of progress.
    """
    watcher = observer or TrainingObserver()
    for defence in scenario.defences:
        build_defence(defence)  # refuses unknown names and options before anything is loaded
    with Store(directory, writable=True) as store:
        watcher.planned(len(scenario.seeds) * len(scenario.defences), scenario.federation.rounds)
        plan: list[tuple[str, int, str]] = []
        for place, seed in enumerate(scenario.seeds):
            federation = build_federation(scenario, seed, data_root=data_root, device=device)
            if place == 0:
                store.set_meta(_head(scenario, federation, command, device))
            base = _base(scenario, federation, device)
            for defence in scenario.defences:
                files = file_hashes(defence)
                key = hash_json({**base, "defence": defence, **({"files": files} if files else {})})
                plan.append((defence, seed, key))
                store.set_meta({"trainings": plan})
                watcher.ended(_train(federation, defence, seed, key, store, watcher, workers))
        return load_training_run(store)


def _train(
    federation: Federation, defence: str, seed: int, key: str, store: Store, watcher: TrainingObserver, workers: int
) -> Training:
    """Train one defence, or go on with it; what the set-up does not allow is recorded."""
    watcher.started(defence, seed, len(store.load_rounds(key)))
    try:
        result = simulate(
            federation.config,
            federation.model,
            federation.clients,
            federation.test,
            build_defence(defence),
            normalisation=federation.normalisation,
            listener=_Recorder(store, key, watcher),
            checkpoint=store.directory / "checkpoints" / f"{key}.safetensors",
            workers=workers,
        )
    except StorageError:
        raise
    except FedsealError as error:
        failed = not isinstance(error, UsageError | CapabilityError)
        store.set_meta({f"training/{key}": {"refused": str(error), "failed": failed}})
        return Training(defence, seed, None, str(error), failed)
    history = result.history
    store.save_rounds(key, history.rounds)
    store.set_meta({f"training/{key}": history.model_dump(mode="json", exclude={"rounds"})})
    return Training(defence, seed, history)


def open_training(directory: Path) -> TrainingRun:
    """Read the trainings in a directory."""
    with Store(directory, writable=False) as store:
        return load_training_run(store)


def load_training_run(store: Store) -> TrainingRun:
    """Read a training run from its store."""
    meta = store.meta()
    if "trainings" not in meta:
        raise UsageError(f"{store.directory} holds no training.", hint="Run `fedseal train --out` with it first.")
    trainings = []
    for defence, seed, key in meta["trainings"]:
        about: dict[str, Any] = meta.get(f"training/{key}", {"refused": "not finished", "failed": False})
        if "refused" in about:
            trainings.append(Training(defence, seed, None, about["refused"], about["failed"]))
        else:
            trainings.append(Training(defence, seed, History(**about, rounds=store.load_rounds(key))))
    return TrainingRun(
        store.directory,
        TrainingScenario.model_validate(meta["training_scenario"]),
        tuple(trainings),
        tuple(tuple(row) for row in meta["partition"]),
        tuple(meta["classes"]),
        meta["partition_note"],
        meta["test_images"],
        meta["chance"],
        meta["environment"],
        meta["command"],
    )


def _base(scenario: TrainingScenario, federation: Federation, device: str) -> dict[str, Any]:
    """Return what determines a training beside its defence."""
    places: dict[str, Tensor] = {str(client): part for client, part in enumerate(federation.partition.indices)}
    return {
        "federation": federation.config.model_dump(mode="json", exclude={"rounds"}),
        "normalise": scenario.normalise,
        "model": hash_tensors(federation.model.state_dict()),
        "data": hash_tensors({"images": federation.train.images, "labels": federation.train.labels}),
        "test": hash_tensors({"images": federation.test.images, "labels": federation.test.labels}),
        "partition": hash_tensors(places),
        "fedseal": VERSION,
        "torch": torch.__version__,
        "device": torch.device(device).type,
    }


def _head(scenario: TrainingScenario, federation: Federation, command: str, device: str) -> dict[str, Any]:
    return {
        "training_scenario": scenario.model_dump(mode="json"),
        "partition": federation.partition.counts.tolist(),
        "partition_note": federation.partition.note,
        "classes": list(federation.train.classes),
        "test_images": len(federation.test),
        "chance": federation.chance,
        "command": command,
        "environment": {
            "fedseal": VERSION,
            "Python": sys.version.split()[0],
            "PyTorch": torch.__version__,
            "machine": f"{platform.system()} {platform.machine()}",
            "device": device,
            "training images": str(len(federation.train)),
            "data (SHA-256)": hash_tensors({"images": federation.train.images, "labels": federation.train.labels}),
        },
    }
