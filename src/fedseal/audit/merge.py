"""Runs of machines that never met, as one run: trials by their identity, what contradicts itself by name.

Equal keys mean equal trials, so a trial of several runs is taken once; what went well outranks what failed. Two results
of one key that differ beyond the time they took contradict each other, and nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedseal.audit.run import Run
from fedseal.audit.runner import load_run
from fedseal.audit.scenario import Scenario
from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import storage_error
from fedseal.store.database import Store, run_directories
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

R = TypeVar("R", TrialRecord, ReadingRecord)

_JOINED = ("defences", "attacks", "weight_seeds")
_LARGEST = ("targets", "readings")
_FREE = {*_JOINED, *_LARGEST, "about", "control"}
"""Keys in which scenarios of one name may differ and be parts of one."""
_TIMES = {"seconds", "cost", "artefact", "scenario"}
_MOST_NAMED = 5


def merge_runs(directories: Sequence[Path], out: Path) -> Run:
    """Write the runs of some directories as one run into a new one, and return it.

    Args:
        directories: of the runs; only read.
        out: must not hold a run yet.
    """
    if len(directories) < 2:
        raise UsageError("merging takes two runs at least.", hint="Name them: fedseal merge RUN RUN -o RUN.")
    if run_directories(out):
        raise UsageError(f"{out} holds a run already.", hint="Name a new directory with -o.")
    trials: dict[str, tuple[Path, TrialRecord]] = {}
    readings: dict[str, tuple[Path, ReadingRecord]] = {}
    metas, conflicts = [], []
    for directory in directories:
        with Store(directory, writable=False) as store:
            load_run(store)  # refuses what is no audit, or damaged
            metas.append(store.meta())
            conflicts += _take(trials, directory, store.trials())
            conflicts += _take(readings, directory, store.readings())
    if conflicts:
        more = f", and {len(conflicts) - _MOST_NAMED} more" if len(conflicts) > _MOST_NAMED else ""
        raise InputError(
            f"the runs contradict each other in {'; '.join(conflicts[:_MOST_NAMED])}{more}.",
            hint="One key has one result: find out which machine computes otherwise, and merge without its run.",
        )
    meta = _joined_meta(metas)
    with Store(out, writable=True) as store:
        store.save(_copied(store, where, record) for where, record in trials.values())
        store.save_readings(_copied(store, where, record) for where, record in readings.values())
        store.set_meta(meta)
        return load_run(store)


def _take(found: dict[str, tuple[Path, R]], directory: Path, records: Sequence[R]) -> list[str]:
    """Add the records of a run to those of others; return what contradicts them, in words."""
    conflicts = []
    for record in records:
        other = found.get(record.key)
        if other is None or (not _well(other[1]) and _well(record)):
            found[record.key] = directory, record
        elif _well(other[1]) and _well(record) and not _same(other[1], record):
            what = getattr(record, "attack", "the ideal reading")
            conflicts.append(
                f"{what} on {record.defence}, target {record.target} of {record.scenario} ({other[0]} and {directory})"
            )
    return conflicts


def _well(record: TrialRecord | ReadingRecord) -> bool:
    return record.status == "ok" if isinstance(record, TrialRecord) else record.psnr_db is not None


def _same(one: R, other: R) -> bool:
    return _equal(one.model_dump(exclude=_TIMES), other.model_dump(exclude=_TIMES))


def _equal(one: Any, other: Any) -> bool:
    """Compare plain data; what is no number equals itself."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def _copied(store: Store, where: Path, record: R) -> R:
    """Copy a record's pictures, as far as they are still there, and return the record."""
    if record.artefact is None:
        return record
    try:
        content = (where / record.artefact).read_bytes()
    except FileNotFoundError:
        return record.model_copy(update={"artefact": None})
    except OSError as error:
        raise storage_error(where / record.artefact, error) from error
    return record.model_copy(update={"artefact": store.save_images(record.key, content)})


def _joined_meta(metas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    scenarios: dict[str, Scenario] = {}
    for values in (values for meta in metas for values in meta["scenarios"]):
        scenario = Scenario.model_validate(values)
        known = scenarios.get(scenario.name)
        scenarios[scenario.name] = scenario if known is None else _joined(known, scenario)
    environment: dict[str, str] = {}
    for name, value in (item for meta in metas for item in meta["environment"].items()):
        said = environment.get(name)
        environment[name] = value if said is None or value in said.split(" / ") else f"{said} / {value}"
    begun = [meta["started"] for meta in metas if meta.get("started")]
    ended = [meta.get("ended", "") for meta in metas]
    return {
        "scenarios": [scenario.model_dump(mode="json") for scenario in scenarios.values()],
        "plan": _unique([tuple(one) for meta in metas for one in meta["plan"]]),
        "readings": _unique([tuple(one) for meta in metas for one in meta.get("readings", [])]),
        "findings": {name: _findings(metas, name) for name in scenarios},
        "proofs": _proofs(metas),
        "environment": environment,
        "command": "; ".join(_unique([meta["command"] for meta in metas])),
        "started": min(begun, default=""),
        "ended": max(ended) if all(ended) else "",
    }


def _joined(one: Scenario, other: Scenario) -> Scenario:
    """Return two scenarios of one name as one: more defences, attacks, targets or weights of the same set-up."""
    ours, theirs = (scenario.model_dump(mode="json") for scenario in (one, other))
    differing = [key for key in ours if key not in _FREE and ours[key] != theirs[key]]
    if differing:
        raise UsageError(
            f"two scenarios are called {one.name} and differ in {' and '.join(differing)}.",
            hint="Give each its own `name:`, run the same commands again (nothing is attacked twice), and merge.",
        )
    values = {key: _unique([*ours[key], *theirs[key]]) for key in _JOINED}
    largest = {key: max(ours[key], theirs[key]) for key in _LARGEST}
    control = ours["control"] if ours["control"] == theirs["control"] else None
    return Scenario.model_validate({**ours, **values, **largest, "control": control})


def _findings(metas: Sequence[dict[str, Any]], name: str) -> list[Any]:
    found: list[Any] = []
    for finding in (one for meta in metas for one in meta["findings"].get(name, [])):
        found += [finding] if finding not in found else []
    return found


def _proofs(metas: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    joined: dict[str, dict[str, Any]] = {}
    for name, proofs in (item for meta in metas for item in meta.get("proofs", {}).items()):
        joined.setdefault(name, {}).update(proofs)
    return joined


def _unique(items: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(items))
