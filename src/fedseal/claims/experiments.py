"""Running a check's experiment, and reading its values by arm out of what it left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedseal.audit.evidence import attainable_guess
from fedseal.audit.run import Run
from fedseal.claims.claim import Check
from fedseal.claims.measures import MEASURES
from fedseal.claims.place import Place
from fedseal.claims.samples import Sample, Samples
from fedseal.core.errors import UsageError
from fedseal.core.identity import identity_of
from fedseal.core.specs import near_matches
from fedseal.federation.simulation import History
from fedseal.metrics.scales import scale_called
from fedseal.store.records import TrialRecord
from fedseal.training.run import TrainingRun
from fedseal.training.runner import run_training
from fedseal.training.scenario import validate_training


@dataclass(frozen=True)
class Evidence:
    """What an experiment left.

    Attributes:
        samples: its values by metric.
        identity: a hash of every trial or training it rests on.
        problems: why some have no value.
    """

    samples: Callable[[str], Samples]
    identity: str
    problems: tuple[str, ...] = ()


def run_experiment(check: Check, place: Place) -> Evidence:
    """Run what is left of a check's experiment."""
    if check.audit is not None:
        return _audited(check, check.audit, place)
    if check.train is not None:
        return _trained(check.train, place)
    assert check.measure is not None
    return _measured(dict(check.measure), place)


# --- audits


def _gain(record: TrialRecord) -> float:
    """Return by how much a reconstruction is better than the best guess an attacker can make without the update."""
    scale = scale_called(record.scale)
    guesses = [attainable_guess(record, name, scale) for name in scale.attainable if name in record.baselines]
    chance = max(map(fmean, guesses), default=0.0)
    return fmean(record.psnr) - chance


def _singled_out(record: TrialRecord) -> float | None:
    places = [ranks for ranks in record.ranks.values() if ranks]
    return max(fmean([float(rank == 1) for rank in ranks]) for ranks in places) if places else None


_NEAR_EXACT = 1e-3
"""Mean squared error below which an image is as good as the original (30 dB)."""
METRICS: dict[str, Callable[[TrialRecord], float | None]] = {
    "psnr": lambda record: fmean(record.psnr),
    "ssim": lambda record: fmean(record.ssim),
    "mse": lambda record: fmean(record.mse),
    "near exact": lambda record: fmean([float(one < _NEAR_EXACT) for one in record.mse]),
    "lpips": lambda record: fmean(record.lpips) if record.lpips else None,
    "gain": _gain,
    "singled out": _singled_out,
    "label accuracy": lambda record: record.label_accuracy,
    "seconds": lambda record: record.seconds,
    "gradient distance": lambda record: record.cost.get("gradient_distance"),
}
"""Of one trial: means over its images. Any other name is a metric that the scenario asks for."""
_LOWER_IS_MORE = {"mse", "lpips"}
"""Metrics that are low where much was recovered."""
_SHARES = {"singled out", "near exact"}
"""Metrics that count successes."""


def _audited(check: Check, values: dict[str, Any], place: Place) -> Evidence:
    values, names = _with_names(values, ("attacks", "defences"))
    run = place.audit(values)
    broken = [record for record in run.records if record.status != "ok"]
    problems = tuple(dict.fromkeys(f"{one.attack} under {one.defence}: {one.message}" for one in broken))
    if len(run.records) < run.planned:
        problems += (f"{run.planned - len(run.records)} of {run.planned} trials have not ended",)
    keys = sorted(record.key for record in run.records)
    return Evidence(lambda metric: _of_audit(run, check, metric, names), identity_of(trials=keys)[:12], problems)


def _of_audit(run: Run, check: Check, metric: str, names: dict[str, str]) -> Samples:
    """Return a run's values by arm; of what tells no arms apart, the combination that recovers most by its mean."""
    levels = {scenario.name: " ".join(scenario.levels.values()) for scenario in run.scenarios}
    found: dict[str, dict[tuple[str, ...], list[Sample]]] = {}
    for record in run.records:
        value = _value(record, metric)
        if record.status != "ok" or value is None or not math.isfinite(value):
            continue
        parts = {
            "attack": names.get(record.attack, record.attack),
            "defence": names.get(record.defence, record.defence),
            "level": levels[record.scenario],
            "knowledge": "aware" if record.aware else "naive",
        }
        arm = " / ".join(parts[axis] for axis in check.by)
        rest = tuple(value for axis, value in parts.items() if axis not in check.by)
        found.setdefault(arm, {}).setdefault(rest, []).append(Sample(arm, record.weight_seed, record.target, value))
    sign = -1.0 if metric in _LOWER_IS_MORE else 1.0
    strongest = (
        max(c.values(), key=lambda samples: sign * fmean(one.value for one in samples)) for c in found.values()
    )
    return Samples((one for samples in strongest for one in samples), shares=metric in _SHARES)


def _value(record: TrialRecord, metric: str) -> float | None:
    if record.status != "ok":
        return None
    if metric in METRICS:
        return METRICS[metric](record)
    if metric in record.metrics:
        return fmean(record.metrics[metric])
    raise UsageError(f"trials have no {metric!r}.", hint=near_matches(metric, [*METRICS, *record.metrics]))


# --- trainings


def _trained(values: dict[str, Any], place: Place) -> Evidence:
    values, names = _with_names(values, ("defences",))
    run = run_training(
        validate_training(values, source="the claim's training"),
        place.directory,
        data_root=place.data_root,
        workers=place.workers,
        command="fedseal claims run",
        watcher=place.watcher,
    )
    problems = tuple(f"{one.defence}: {one.refused}" for one in run.trainings if one.refused)
    if run.caution:
        problems += (run.caution,)
    made = [(one.defence, one.seed, None if one.history is None else one.history.curve) for one in run.trainings]
    identity = identity_of(scenario=run.scenario.model_dump(mode="json"), curves=[list(map(str, one)) for one in made])
    return Evidence(lambda metric: Samples(_of_training(run, metric, names)), identity[:12], problems)


def _of_training(run: TrainingRun, metric: str, names: dict[str, str]) -> Iterator[Sample]:
    twins = {one.seed: one.history for one in run.trainings if one.defence == "none" and one.history is not None}
    read: dict[str, Callable[[History, History], float]] = {
        "accuracy": lambda own, twin: 100 * own.accuracy,
        "pmm": lambda own, twin: 100 * own.accuracy / twin.accuracy,
        "bytes up": lambda own, twin: own.bytes_up / twin.bytes_up,
        "bytes down": lambda own, twin: own.bytes_down / twin.bytes_down,
        "seconds": lambda own, twin: own.seconds / twin.seconds,
    }
    if metric not in read:
        raise UsageError(f"trainings have no {metric!r}.", hint=near_matches(metric, list(read)))
    for one in run.trainings:
        if one.history is not None and one.seed in twins:
            value = read[metric](one.history, twins[one.seed])
            yield Sample(names.get(one.defence, one.defence), one.seed, 0, value)


# --- measurements


def _measured(options: dict[str, Any], place: Place) -> Evidence:
    name = options.pop("name", "")
    if name not in MEASURES:
        raise UsageError(f"there is no measurement {name!r}.", hint=near_matches(name, list(MEASURES)))
    found: Iterable[Sample] = tuple(MEASURES[name](place, **options))
    samples = Samples(found)
    identity = identity_of(values=[[one.arm, one.group, one.unit, one.value] for one in found])[:12]
    return Evidence(lambda metric: samples, identity)


def _with_names(values: dict[str, Any], keys: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a scenario with plain lists where a declaration names specs, and the names by spec."""
    names: dict[str, str] = {}
    plain = dict(values)
    for key in keys:
        given = values.get(key)
        if isinstance(given, dict):
            names |= {str(spec): str(name) for name, spec in given.items()}
            plain[key] = list(given.values())
    return plain, names
