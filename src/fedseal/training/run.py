"""What trainings came to: their curves, and per defence what it costs, read from a run's store."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedseal.core.errors import UsageError
from fedseal.core.files import PathText
from fedseal.federation.simulation import History, RoundRecord
from fedseal.metrics.intervals import Interval, mean_interval
from fedseal.metrics.utility import has_learnt, pmm_over_seeds, reached_target
from fedseal.store.database import Store
from fedseal.store.frames import make_frame
from fedseal.training.scenario import TrainingScenario

if TYPE_CHECKING:
    from pandas import DataFrame

_TARGET_SHARE = 0.9


@dataclass(frozen=True)
class Training:
    """One defence trained with one seed.

    Attributes:
        defence: its spec.
        seed: of the run.
        history: as far as it went; None if it was refused before the first round, or stopped.
        refused: why it cannot be trained, or was not to the end.
        failed: whether it broke, rather than being ruled out by the set-up.
        rounds: those played before it was stopped for want of hope; empty where it was not.
        key: what it is named by in the store; its last state lies in `checkpoints/KEY.safetensors`.
    """

    defence: str
    seed: int
    history: History | None
    refused: str = ""
    failed: bool = False
    rounds: tuple[RoundRecord, ...] = ()
    key: str = ""


@dataclass(frozen=True)
class Utility:
    """What a defence costs, over the seeds.

    Attributes:
        defence: its spec.
        trainings: one per seed that was trained.
        refused: why it was not.
        accuracy: of the last measurement.
        pmm: against the undefended twins, in per cent; None where these have learnt nothing.
        learnt: whether the accuracy is more than chance (`has_learnt`).
        auc: area under the ROC curve, of the last measurement; None where it is not defined.
        class_accuracy: of the last measurement, mean over the seeds; None for a class the test set has none of.
        rounds: to the target, over the runs that reach it.
        reached: how many runs do.
        bytes_up: per client and round.
        seconds: per round.
        epsilon: largest of the seeds, where one is accounted.
        dropped: uploads refused, dropouts not counted.
        remarks: of the clients' defences after the last round, with the first seed.
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
    learnt: bool = False
    auc: Interval | None = None
    class_accuracy: tuple[float | None, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """Mean accuracy over the seeds after so many rounds."""
        curves = [dict(t.history.curve) for t in self.trainings if t.history is not None]
        shared = [number for number in curves[0] if all(number in curve for curve in curves)] if curves else []
        return tuple((number, sum(curve[number] for curve in curves) / len(curves)) for number in shared)


@dataclass(frozen=True)
class TrainingRun:
    """All trainings of a scenario.

    Example:
        >>> import fedseal, tempfile
        >>> run = fedseal.train(
        ...     data="faces:size=8", model="mlp", clients=2, federation={"rounds": 1}, out=tempfile.mkdtemp()
        ... )
        >>> 0 <= run.utilities[0].accuracy.mean <= 1
        True

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
        """The accuracy whose rounds are counted: the scenario's, or a share of the undefended twins' mean.

        None where that share is no more than chance: who reaches it need not have learnt anything.
        """
        if self.scenario.target_accuracy is not None:
            return self.scenario.target_accuracy
        plain = self._undefended
        return _TARGET_SHARE * plain if plain is not None and _TARGET_SHARE * plain > self.chance else None

    @property
    def caution(self) -> str:
        """Why nothing can be said about the accuracy kept, in a sentence; empty if it can."""
        plain = self._undefended
        if plain is None or has_learnt(plain, self.chance, self.test_images):
            return ""
        return (
            f"The undefended federation has learnt nothing ({plain:.1%} on {self.test_images} test samples; always "
            f"giving the most frequent answer scores {self.chance:.1%}). So nothing can be said about the accuracy a "
            "defence keeps, and none is recommended. Train for more rounds, or check learning rate and data."
        )

    @cached_property
    def utilities(self) -> tuple[Utility, ...]:
        """What each defence costs, in the scenario's order."""
        return tuple(self._utility(defence) for defence in self.scenario.defences)

    def frame(self) -> DataFrame:
        """Return the rounds as a pandas frame (extra `frames`): one row per defence, seed and round.

        `clients` and `dropped` are counts, `class_accuracy.NAME` is the accuracy on one class; a training that was
        refused is one row that says why.

        Example:
            >>> import fedseal, tempfile
            >>> values = {"data": "faces:size=8", "model": "mlp", "clients": 2, "federation": {"rounds": 2}}
            >>> run = fedseal.train(values, out=tempfile.mkdtemp())
            >>> run.frame()[["defence", "seed", "round", "clients"]].values.tolist()
            [['none', 0, 0, 2], ['none', 0, 1, 2]]
        """
        return make_frame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return what `frame` holds as plain rows."""
        rows: list[dict[str, Any]] = []
        for training in self.trainings:
            head = {"defence": training.defence, "seed": training.seed, "refused": training.refused}
            for record in () if training.history is None else training.history.rounds:
                counts = {"clients": len(record.clients), "dropped": len(record.dropped)}
                shares = zip(self.classes, record.class_accuracy, strict=False)
                of_classes = {f"class_accuracy.{name}": share for name, share in shares}
                plain = record.model_dump(exclude={"clients", "dropped", "class_accuracy"})
                rows.append(head | plain | counts | of_classes)
            if training.history is None:
                rows.append(head)
        return rows

    @cached_property
    def _undefended(self) -> float | None:
        plain = self._histories("none")
        return sum(h.accuracy for h in plain.values()) / len(plain) if plain else None

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
        accuracy = mean_interval([history.accuracy for history in own.values()])
        areas = [history.auc for history in own.values() if history.auc is not None]
        pairs = [(own[seed].accuracy, plain[seed].accuracy) for seed in own if seed in plain]
        answers = sum(len(record.clients) for history in own.values() for record in history.rounds)
        rounds = sum(len(history.rounds) for history in own.values())
        reached = reached_target([h.curve for h in own.values()], self.target) if self.target is not None else (None, 0)
        epsilons = [h.epsilon for h in own.values() if h.epsilon is not None]
        return Utility(
            defence,
            trainings,
            "",
            accuracy,
            pmm_over_seeds([a for a, _ in pairs], [b for _, b in pairs])
            if pairs and all(b for _, b in pairs) and not self.caution
            else None,
            *reached,
            sum(history.bytes_up for history in own.values()) / answers if answers else None,
            sum(history.seconds for history in own.values()) / rounds,
            max(epsilons, default=None),
            sum(d.reason != "did not answer" for history in own.values() for _, d in history.dropped),
            has_learnt(accuracy.mean, self.chance, self.test_images),
            mean_interval(areas) if areas else None,
            _means([history.class_accuracy for history in own.values()]),
            next(iter(own.values())).remarks,
        )


def _means(rows: list[tuple[float | None, ...]]) -> tuple[float | None, ...]:
    """Return the means of columns, of what is not None in them."""
    columns = [[value for value in column if value is not None] for column in zip(*rows, strict=False)]
    return tuple(fmean(column) if column else None for column in columns)


def open_training(directory: PathText) -> TrainingRun:
    """Read the trainings in a directory.

    Example:
        >>> import fedseal, tempfile
        >>> out = tempfile.mkdtemp()
        >>> run = fedseal.train(data="faces:size=8", model="mlp", clients=2, federation={"rounds": 1}, out=out)
        >>> fedseal.open_training(out) == run
        True
    """
    with Store(Path(directory), writable=False) as store:
        return load_training_run(store)


def load_training_run(store: Store) -> TrainingRun:
    """Read a training run from its store."""
    meta = store.meta()
    if "trainings" not in meta:
        raise UsageError(f"{store.directory} holds no training.", hint="Run `fedseal train --out` with it first.")
    trainings = []
    for defence, seed, key in meta["trainings"]:
        about: dict[str, Any] = meta.get(f"training/{key}", {"refused": "not finished", "failed": False})
        if about.get("stopped"):
            trainings.append(Training(defence, seed, None, about["refused"], rounds=store.load_rounds(key), key=key))
        elif "refused" in about:
            trainings.append(Training(defence, seed, None, about["refused"], about["failed"], key=key))
        else:
            trainings.append(Training(defence, seed, History(**about, rounds=store.load_rounds(key)), key=key))
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
