"""Training a federation under each defence: twins of one seed share data, partition, weights, sampling and batches.

Every round is in the store as soon as it ended; a checkpoint beside it lets a killed run go on, and what has ended is
never trained again. A defence that the set-up does not allow is recorded as refused, and the others go on.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

from fedseal._version import VERSION
from fedseal.core.errors import CapabilityError, FedsealError, StorageError, UsageError
from fedseal.core.files import PathText
from fedseal.core.identity import identity_of
from fedseal.core.sources import code_digest
from fedseal.core.watcher import Task, Watcher
from fedseal.defences.pipeline import build_defence
from fedseal.federation.simulation import RoundRecord, RoundsShown, simulate
from fedseal.store.database import Store
from fedseal.store.identity import data_part, defence_part, machine_part, model_part
from fedseal.training.run import TrainingRun, load_training_run
from fedseal.training.scenario import TrainingScenario
from fedseal.training.setup import Federation, build_federation

Stop: TypeAlias = Callable[[str, int, Sequence[RoundRecord]], str]
"""Told a defence, a seed and the rounds so far, returns why there should be no more of them; empty to go on."""


class _StoppedError(FedsealError):
    """A training that is not worth its end."""


class _Recorder(RoundsShown):
    """Puts every round into the store as soon as it ended, and shows it; ends a training that is to be stopped."""

    def __init__(
        self, store: Store, key: str, task: Task, watcher: Watcher, stop: Callable[[Sequence[RoundRecord]], str]
    ) -> None:
        super().__init__(task, watcher)
        self._store, self._key, self._stop = store, key, stop
        self._rounds = [*store.load_rounds(key)]

    def finished(self, record: RoundRecord, rounds: int) -> None:
        """Keep the round, then show it."""
        self._store.save_rounds(self._key, [record])
        super().finished(record, rounds)
        self._rounds = [*(one for one in self._rounds if one.round < record.round), record]
        if record.round + 1 < rounds:
            self.check()

    def check(self) -> None:
        """Raise where the rounds so far are enough."""
        if reason := self._stop(self._rounds):
            raise _StoppedError(reason)


def run_training(
    scenario: TrainingScenario,
    directory: PathText,
    *,
    data_root: PathText | None = None,
    device: str = "cpu",
    workers: int = 1,
    command: str = "fedseal train",
    watcher: Watcher | None = None,
    stop: Stop | None = None,
) -> TrainingRun:
    """Train a scenario under all its defences and seeds, as far as `directory` does not hold it, and return the run.

    Args:
        scenario: what to train.
        directory: store and checkpoints; running the same scenario there again resumes.
        data_root: where local data sets lie.
        device: where clients train.
        workers: clients trained at once, one thread each; no number depends on it.
        command: what to print as the way to reproduce the run.
        watcher: told of progress.
        stop: asked after every round; a training it stops is kept as far as it went, and goes on where it was when
            somebody asks for it without.
    """
    watcher = watcher or Watcher()
    for defence in scenario.defences:
        build_defence(defence)  # refuses unknown names and options before anything is loaded
    root = None if data_root is None else Path(data_root)
    with Store(Path(directory), writable=True) as store:
        watcher.planned("trainings", len(scenario.seeds) * len(scenario.defences), 0)
        plan: list[tuple[str, int, str]] = []
        for place, seed in enumerate(scenario.seeds):
            federation = build_federation(scenario, seed, data_root=root, device=device)
            if place == 0:
                store.set_meta(_head(scenario, federation, command, device))
                for note in federation.train.notes:
                    watcher.remarked("warning", f"data: {note}.")
            base = _base(scenario, federation, device)
            for defence in scenario.defences:
                key = identity_of(base=base, defence=defence_part(defence))
                plan.append((defence, seed, key))
                store.set_meta({"trainings": plan})
                own = partial(stop, defence, seed) if stop is not None else lambda rounds: ""
                _train(federation, defence, seed, key, store, watcher, workers, own)
        return load_training_run(store)


def _train(
    federation: Federation,
    defence: str,
    seed: int,
    key: str,
    store: Store,
    watcher: Watcher,
    workers: int,
    stop: Callable[[Sequence[RoundRecord]], str],
) -> None:
    """Train one defence, or go on with it; what the set-up does not allow is recorded."""
    rounds = federation.config.rounds
    task = Task(f"{defence}, seed {seed}", rounds, min(len(store.load_rounds(key)), rounds), key)
    watcher.started(task)
    recorder = _Recorder(store, key, task, watcher, stop)
    try:
        if task.begun < rounds:
            recorder.check()
        result = simulate(
            federation.config,
            federation.model,
            federation.clients,
            federation.test,
            build_defence(defence),
            normalisation=federation.normalisation,
            listener=recorder,
            checkpoint=store.directory / "checkpoints" / f"{key}.safetensors",
            workers=workers,
        )
    except StorageError:
        raise
    except _StoppedError as stopped:
        store.set_meta({f"training/{key}": {"refused": stopped.message, "failed": False, "stopped": True}})
    except FedsealError as error:
        failed = not isinstance(error, UsageError | CapabilityError)
        store.set_meta({f"training/{key}": {"refused": str(error), "failed": failed}})
        watcher.remarked("problem" if failed else "warning", f"{defence} was not trained: {error}")
    else:
        store.save_rounds(key, result.history.rounds)
        store.set_meta({f"training/{key}": result.history.model_dump(mode="json", exclude={"rounds"})})
    watcher.finished(task, 1)


def _base(scenario: TrainingScenario, federation: Federation, device: str) -> str:
    """Return the hash of what determines a training beside its defence, but for how far it goes."""
    return identity_of(
        federation=federation.config.model_dump(mode="json", exclude={"rounds"}),
        normalise=scenario.normalise,
        model=model_part(scenario.model, federation.model),
        data=data_part(federation.train),
        test=federation.test,
        partition=list(federation.partition.indices),
        machine=machine_part(device),
        code=code_digest(["fedseal.federation.simulation.loop", "fedseal.training.setup"]),
    )


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
            "data (SHA-256)": federation.train.digest(),
        },
    }
