"""The audit itself: plan, skip what the store has, run the rest, keep every result as soon as it is there."""

from __future__ import annotations

import platform
import sys
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy
import torch

from fedseal._version import VERSION
from fedseal.audit.doctor import examine, told_once
from fedseal.audit.estimate import Estimate, estimate
from fedseal.audit.plan import Job, check_names, plan_jobs
from fedseal.audit.proofs import proof_data, prove_defences, read_proof
from fedseal.audit.readings import ReadingJob, plan_readings
from fedseal.audit.run import Run
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Loaded, Setup, build_setup
from fedseal.audit.trials import Outcome
from fedseal.audit.work import work_anywhere, work_here
from fedseal.core.errors import FedsealError, StorageError, UsageError
from fedseal.core.files import PathText
from fedseal.core.watcher import Task, Watcher
from fedseal.defences.pipeline import build_defence
from fedseal.engines.cluster import RayEngine
from fedseal.engines.events import Event, Finished, Progressed, Started
from fedseal.engines.local import LocalEngine
from fedseal.engines.pool import PoolEngine
from fedseal.federation.simulation import RoundsShown
from fedseal.modalities.known import measures_of
from fedseal.store.database import Store
from fedseal.store.findings import Finding
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import check_record

EngineName: TypeAlias = Literal["local", "ray"]
"""Where trials run: on this machine, or on a Ray cluster."""


def run_audit(
    scenarios: Sequence[Scenario],
    directory: PathText,
    *,
    data_root: PathText | None = None,
    device: str = "cpu",
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
    command: str = "fedseal audit",
    watcher: Watcher | None = None,
    only_read: bool = False,
) -> Run:
    """Run all trials of `scenarios` that `directory` does not hold yet, and return the run.

    Args:
        scenarios: with distinct names.
        directory: store, artefacts and reports; running the same plan there again resumes.
        data_root: where local data sets lie.
        device: where attacks run.
        workers: processes that run trials; 1 runs them here. With more, the calling script needs the usual
            `if __name__ == "__main__"` guard.
        engine: `local`, or `ray` for trials on a Ray cluster (extra `ray`); this process alone writes the directory.
        address: of the cluster: `auto`, `HOST:PORT` or `ray://HOST:PORT`; None for one of this machine's own.
        command: what to print as the way to reproduce the run.
        watcher: told of progress.
        only_read: compute what updates hold, and what is proven, and attack nothing.

    Example:
        >>> import fedseal, tempfile
        >>> scenario = fedseal.Scenario(data="faces:size=8", attacks="ig:iterations=2", targets=1)
        >>> fedseal.run_audit([scenario], tempfile.mkdtemp()).records[0].status
        'ok'
    """
    watcher = watcher or Watcher()
    check_engine(engine, address)
    root = None if data_root is None else Path(data_root)
    _check_scenarios(scenarios)
    stages = Path(directory) / "stages"
    played = tuple(own for scenario in scenarios for own in scenario.by_weights())
    loaded = Loaded(root)
    setups = [build_setup(scenario, data_root=root, device=device, stages=stages, loaded=loaded) for scenario in played]
    _check_weights(setups)
    plans = [() if only_read else plan_jobs(setup) for setup in setups]
    readings = [plan_readings(setup) for setup in setups]
    with Store(Path(directory), writable=True) as store:
        plan = [
            (setup.scenario.name, trial.key)
            for setup, jobs in zip(setups, plans, strict=True)
            for job in jobs
            for trial in job.trials
        ]
        wanted = [(setup.scenario.name, job.key) for setup, jobs in zip(setups, readings, strict=True) for job in jobs]
        ended = store.load([key for _, key in plan])
        stored = {key for key, record in ended.items() if record.status == "ok"}  # only what went well is final
        read = {key for key, found in store.load_readings([k for _, k in wanted]).items() if found.psnr_db is not None}
        held = sum(key in stored for _, key in plan)
        tasks = list(_left(plans, readings, stored, read))
        if tasks:
            if len(scenarios) > 1:
                watcher.remarked("note", f"plan: {len(scenarios)} scenarios{_varied(scenarios)}.")
            forecast = _forecast(setups, tasks, workers)
            watcher.remarked("note", f"estimate: {forecast.describe()}")
        for setup in setups:
            _train_stage(setup, "none", watcher, workers)  # the doctor looks at what is undefended
        firsts = {setup.scenario.name: setup for setup in reversed(setups)}
        findings = {one.name: examine(replace(firsts[one.name], scenario=one)) for one in scenarios}
        before = store.meta()
        store.set_meta(
            {
                "scenarios": [scenario.model_dump(mode="json") for scenario in scenarios],
                "plan": plan,
                "readings": wanted,
                "findings": {name: [f.model_dump() for f in found] for name, found in findings.items()},
                "environment": _environment(setups),
                "command": command,
                "started": before.get("started") or _now(),
                "ended": "",
            }
        )
        watcher.planned("trials", len(plan), held)
        for finding, where in told_once(findings):
            watcher.remarked(finding.severity, f"{finding.topic}: {finding.text}{where}")
        for index, spec in dict.fromkeys((index, job.defence) for index, job in tasks):
            _train_stage(setups[index], spec, watcher, workers)

        def handle(event: Event) -> None:
            task = Task(tasks[event.index][1].title, key=str(event.index))
            match event:
                case Started():
                    watcher.started(task)
                case Progressed():
                    watcher.advanced(task, event.report)
                case Finished() if isinstance(tasks[event.index][1], ReadingJob):
                    _keep_reading(store, *event.result)
                    watcher.finished(task, 0)
                case Finished():
                    _keep(store, event.result)
                    watcher.finished(task, len(event.result))

        if engine == "ray":
            RayEngine(address, workers).run(work_anywhere(setups), tasks, handle)
        else:
            weights = [setup.weights_hash for setup in setups]
            here = LocalEngine() if workers == 1 or len(tasks) < 2 else PoolEngine(workers)
            here.run(work_here(played, weights, root, device, stages), tasks, handle)
        proofs = {name: prove_defences(setup) for name, setup in firsts.items()}
        told = {n: {d: proof_data(p) for d, p in found.items()} for n, found in proofs.items()}
        store.set_meta({"proofs": told, "ended": _now() if tasks or not before.get("ended") else before["ended"]})
        return load_run(store)


def _forecast(setups: Sequence[Setup], tasks: Sequence[tuple[int, Job | ReadingJob]], workers: int) -> Estimate:
    """Return what jobs will take, of which each names the place of its set-up."""
    own: dict[int, list[Job | ReadingJob]] = {}
    for index, job in tasks:
        own.setdefault(index, []).append(job)
    return estimate([(setups[index], jobs) for index, jobs in own.items()], workers)


def _left(
    plans: Sequence[Sequence[Job]], readings: Sequence[Sequence[ReadingJob]], stored: set[str], read: set[str]
) -> Iterator[tuple[int, Job | ReadingJob]]:
    """Yield what has to run, with the place of its set-up; what several scenarios share runs once."""
    for index, jobs in enumerate(plans):
        for job in jobs:
            own = job.without(stored)
            stored |= {trial.key for trial in own.trials}
            if own.trials:
                yield index, own
    for index, wanted in enumerate(readings):
        for one in wanted:
            if one.key not in read:
                read.add(one.key)
                yield index, one


def levels_of(scenarios: Sequence[Scenario]) -> dict[str, list[str]]:
    """Return the factors that scenarios are made of, each with its levels in words."""
    levels: dict[str, list[str]] = {}
    for scenario in scenarios:
        for name, words in scenario.levels.items():
            levels.setdefault(name, [])
            levels[name] += [words] if words not in levels[name] else []
    return levels


def _varied(scenarios: Sequence[Scenario]) -> str:
    """Return the factors the scenarios are made of, in one line."""
    return "".join(f"{';' if i else ':'} {n} {', '.join(w)}" for i, (n, w) in enumerate(levels_of(scenarios).items()))


def examine_only(
    scenarios: Sequence[Scenario], *, data_root: PathText | None = None, device: str = "cpu", workers: int = 1
) -> tuple[dict[str, tuple[Finding, ...]], Estimate]:
    """Return the doctor's findings by scenario, and what an audit of all would take; nothing is attacked or stored."""
    _check_scenarios(scenarios)
    root = None if data_root is None else Path(data_root)
    loaded = Loaded(root)
    played = [own for scenario in scenarios for own in scenario.by_weights()]
    setups = [build_setup(scenario, data_root=root, device=device, loaded=loaded) for scenario in played]
    firsts = {setup.scenario.name: setup for setup in reversed(setups)}
    found = {one.name: examine(replace(firsts[one.name], scenario=one)) for one in scenarios}
    tasks = list(_left([plan_jobs(s) for s in setups], [plan_readings(s) for s in setups], set(), set()))
    return found, _forecast(setups, tasks, workers)


def load_run(store: Store) -> Run:
    """Read a run from its store."""
    meta = store.meta()
    if "plan" not in meta:
        raise UsageError(f"{store.directory} holds no plan yet.", hint="Run `fedseal audit --out` with it first.")
    try:
        return _loaded(store, meta)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:  # numbers SQLite cannot hold
        raise StorageError(
            f"{store.directory} is damaged: what it says of its run contradicts itself.",
            hint="Use a new directory with --out.",
        ) from error


def _loaded(store: Store, meta: dict[str, Any]) -> Run:
    records = store.load([key for _, key in meta["plan"]])
    for record in records.values():
        check_record(record)
    return Run(
        store.directory,
        tuple(Scenario.model_validate(values) for values in meta["scenarios"]),
        len(meta["plan"]),
        tuple(records[key].model_copy(update={"scenario": name}) for name, key in meta["plan"] if key in records),
        {name: tuple(Finding.model_validate(f) for f in found) for name, found in meta["findings"].items()},
        meta["environment"],
        meta["command"],
        _load_readings(store, meta.get("readings", [])),
        proofs={n: {d: read_proof(p) for d, p in found.items()} for n, found in meta.get("proofs", {}).items()},
        started=meta.get("started", ""),
        ended=meta.get("ended", ""),
    )


def _load_readings(store: Store, wanted: Sequence[tuple[str, str]]) -> tuple[ReadingRecord, ...]:
    """Return the readings there are of a plan, in its order and under its names."""
    found = store.load_readings([key for _, key in wanted])
    return tuple(found[key].model_copy(update={"scenario": name}) for name, key in wanted if key in found)


def open_run(directory: PathText) -> Run:
    """Read the run in a directory.

    Example:
        >>> import fedseal, tempfile
        >>> out = tempfile.mkdtemp()
        >>> run = fedseal.audit(data="faces:size=8", attacks="ig:iterations=2", targets=1, out=out)
        >>> fedseal.open_run(out) == run
        True
    """
    with Store(Path(directory), writable=False) as store:
        return load_run(store)


def check_engine(engine: str, address: str | None) -> None:
    """Refuse what names no engine, and an address for one that has none."""
    known = typing.get_args(EngineName)
    if engine not in known:
        raise UsageError(f"there is no engine {engine!r}.", hint=f"Use one of: {', '.join(known)}.")
    if address is not None and engine != "ray":
        raise UsageError("an address is of a Ray cluster.", hint="Add --engine ray, or leave --address out.")


def _check_scenarios(scenarios: Sequence[Scenario]) -> None:
    names = [scenario.name for scenario in scenarios]
    if len(set(names)) != len(names):
        raise UsageError(f"scenario names must differ, got {', '.join(names)}.", hint="Set `name:` in each file.")
    for scenario in scenarios:
        check_names(scenario)


def _check_weights(setups: Sequence[Setup]) -> None:
    """Refuse seeds of weights that give the same weights: what is attacked twice is not shown twice."""
    seen: dict[tuple[str, str], int] = {}
    for setup in setups:
        seed = setup.scenario.weight_seed
        other = seen.setdefault((setup.scenario.name, setup.weights_hash), seed)
        if other != seed:
            raise UsageError(
                f"weight seeds {other} and {seed} give {setup.scenario.model} the same weights.",
                hint="Leave weight_seeds out for a model that brings its weights along.",
            )


def _train_stage(setup: Setup, spec: str, watcher: Watcher, workers: int) -> None:
    """Train up to the attacked round under one defence, so that no two trials do; what it cannot, its trials say."""
    if setup.staging is None or setup.staging.has(spec):
        return
    rounds = setup.staging.stage.round or 1  # without a number there is a checkpoint, and none to train
    task = Task(f"training under {spec} before the attack", rounds, key=f"stage/{setup.scenario.name}/{spec}")
    watcher.started(task)
    try:
        setup.staging.federation(build_defence(spec), spec, listener=RoundsShown(task, watcher), workers=workers)
    except StorageError:
        raise
    except FedsealError as error:
        watcher.remarked("problem", f"there is no training under {spec} to be attacked: {error}")
    watcher.finished(task, 0)


def _keep(store: Store, outcomes: Sequence[Outcome]) -> None:
    records = []
    for outcome in outcomes:
        record = outcome.record
        if outcome.images is not None:
            record = record.model_copy(update={"artefact": store.save_images(record.key, outcome.images)})
        records.append(record)
    store.save(records)


def _keep_reading(store: Store, record: ReadingRecord, pixel_map: bytes | None) -> None:
    if pixel_map is not None:
        record = record.model_copy(update={"artefact": store.save_images(record.key, pixel_map)})
    store.save_readings([record])


def _now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _environment(setups: Sequence[Setup]) -> dict[str, str]:
    environment: dict[str, Any] = {
        "fedseal": VERSION,
        "Python": sys.version.split()[0],
        "PyTorch": torch.__version__,
        "NumPy": numpy.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "device": next(setups[0].model.parameters()).device.type,
    }
    for setup in setups:
        scenario = setup.scenario
        measured = measures_of(setup.public.modality, scenario.lpips).describe()
        whose = "" if scenario.lpips == "auto" else f"{scenario.name}: "
        environment |= {f"{whose}{name}": words for name, words in measured.items()}
        environment[f"{scenario.name}: seed"] = str(scenario.seed)
        environment[f"{scenario.name}: data (SHA-256)"] = setup.data_hash
        which = f" of seed {scenario.weight_seed}" if scenario.weight_seeds else ""
        environment[f"{scenario.name}: weights{which} (SHA-256)"] = setup.weights_hash
        if setup.staging is not None:
            environment[f"{setup.scenario.name}: attacked round"] = setup.staging.describe()
    return environment
