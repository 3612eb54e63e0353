"""What running at scale costs: engines, the store, the driver, and attacks that grow.

    python bench/scale.py [--parts engines,store,growth] [--trials 24] [--seconds 5] [--records 100000]
    python bench/scale.py --quick

*Engines*: the same attacks of a few seconds each in this process, in one and two worker processes, on one and two
cores of a Ray cluster of this machine's own, and on one of two nodes with a core each. Told are trials per hour from
the start of the first to the end of the last, the time until the first one, and what lies between two trials of one
process, as a share of a trial. *Store*: records like those of real trials, written one by one as an audit does, with
what one more costs and the bytes of the file at every power of ten; and the driver's memory while it writes as many,
and while it hears of as many results of processes and of a fiftieth of Ray's. *Growth*: processor seconds of an
iteration of `ig` by batch, image size and model. The table goes to bench/out/scale.md, all figures to
bench/out/scale.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import psutil
import torch
from rich.console import Console

from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.files import write_atomically
from fedseal.core.threads import one_thread
from fedseal.core.watcher import Report
from fedseal.defences.pipeline import build_defence
from fedseal.engines.cluster import RayEngine
from fedseal.engines.events import Event, Finished, Handle, MakeWork
from fedseal.engines.local import LocalEngine
from fedseal.engines.pool import PoolEngine
from fedseal.store.database import Store

OUT = Path(__file__).resolve().parent / "out"
Run: TypeAlias = Callable[[MakeWork, Sequence[Any], Handle], None]
"""An engine."""
PARTS = ("engines", "store", "growth")
_PILOT = 60
_GROWTH: dict[str, list[dict[str, Any]]] = {
    "batch": [{"batch_size": size} for size in (1, 4, 16)],
    "image": [{"data": f"faces:size={size}"} for size in (16, 32, 64)],
    "model": [
        {"model": model} for model in ("lenet-relu", "resnet10:width=16", "resnet10:width=32", "resnet10:width=64")
    ],
}


@dataclass(frozen=True)
class Options:
    """The command line."""

    parts: tuple[str, ...]
    trials: int
    seconds: float
    records: int


@dataclass(frozen=True)
class Trial:
    """Who ran a trial, and from when to when."""

    process: int
    start: float
    end: float


@dataclass(frozen=True)
class Attacks:
    """Work of an engine: attacks of one set-up, a target each.

    Attributes:
        iterations: of each.
    """

    iterations: int

    def __call__(self) -> Callable[[int, Report], Trial]:
        """Build what every process builds once."""
        setup = build_setup(_scenario())
        attack = ATTACKS.build("ig")

        def work(target: int, report: Report) -> Trial:
            started = time.time()
            seen = setup.observe(build_defence("none"), target % setup.scenario.targets).observation
            attack.run_many([seen], Budget(self.iterations), [target])
            return Trial(os.getpid(), started, time.time())

        return work


def nothing() -> Callable[[int, Report], int]:
    """Return work that is none."""
    return lambda task, report: task


def main() -> None:
    """Measure the parts asked for and write what was found."""
    options = _options()
    found: dict[str, Any] = {"cores": os.cpu_count(), "torch": torch.__version__}
    for part in options.parts:
        found[part] = {"engines": _engines, "store": _store, "growth": _growth}[part](options)
    OUT.mkdir(exist_ok=True)
    write_atomically(OUT / "scale.json", json.dumps(found, indent=1).encode())
    page = _page(found)
    write_atomically(OUT / "scale.md", page.encode())
    Console().print(page, markup=False, highlight=False)


def _options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one trial; default: %(default)s")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="four trials of a second, 1,000 records")
    read = parser.parse_args()
    if unknown := set(read.parts.split(",")) - set(PARTS):
        parser.error(f"there is no part {sorted(unknown)[0]!r}; there are {', '.join(PARTS)}")
    if read.quick:
        return Options(tuple(read.parts.split(",")), 4, 1.0, 1000)
    return Options(tuple(read.parts.split(",")), read.trials, read.seconds, read.records)


def _scenario(**changes: Any) -> Scenario:
    batch = changes.pop("batch_size", 1)
    keys = {"data": "faces:size=32", "model": "lenet-relu", "targets": 4, "attacker": {"labels": "true"}}
    return Scenario(**{**keys, "client": {"batch_size": batch}, **changes})


def _engines(options: Options) -> list[dict[str, Any]]:
    """Return a row for every engine; the attacks' length is set by a pilot in this process."""
    last = _ran(LocalEngine().run, Attacks(_PILOT), 2)[-1]
    work = Attacks(max(1, round(_PILOT * options.seconds / (last.end - last.start))))
    rows = [
        _timed("this process", 1, options, work, LocalEngine().run),
        _timed("one worker process", 1, options, work, PoolEngine(1).run),
        _timed("two worker processes", 2, options, work, PoolEngine(2).run),
        _timed("Ray, one core", 1, options, work, RayEngine(workers=1).run),
        _timed("Ray, two cores", 2, options, work, RayEngine(workers=2).run),
    ]
    with _two_nodes() as address:
        rows.append(_timed("Ray, two nodes", 2, options, work, RayEngine(address).run))
    return rows


def _timed(name: str, workers: int, options: Options, work: Attacks, run: Run) -> dict[str, Any]:
    """Run all trials; what lies between two of one process is the engine's."""
    began = time.time()
    trials = _ran(run, work, options.trials)
    by_process: dict[int, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.start):
        by_process.setdefault(trial.process, []).append(trial)
    gaps = [after.start - before.end for own in by_process.values() for before, after in pairwise(own)]
    each, between = fmean(trial.end - trial.start for trial in trials), fmean(gaps)
    return {
        "engine": name,
        "workers": workers,
        "trials per hour": 3600 * len(trials) / (max(one.end for one in trials) - min(one.start for one in trials)),
        "start, s": min(trial.start for trial in trials) - began,
        "trial, s": each,
        "between two, ms": 1e3 * between,
        "overhead": between / each,
    }


def _ran(run: Run, work: Attacks, count: int) -> list[Trial]:
    found: list[Trial] = []
    run(work, list(range(count)), lambda event: found.append(event.result) if isinstance(event, Finished) else None)
    return found


@contextmanager
def _two_nodes() -> Iterator[str]:
    """Start a cluster of two nodes of one core each, as processes of their own; yield its address."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


def _store(options: Options) -> dict[str, Any]:
    """Return what the next record costs at growing sizes, and the driver's memory over as many results."""
    sizes = [10**power for power in range(2, 9) if 10**power < options.records] + [options.records]
    rows = []
    grew: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        audit = _scenario(data="digits", attacks=["ig:iterations=2"], defences=["none"], targets=1, readings=0)
        (like,) = run_audit([audit], Path(place) / "one").records
        with Store(Path(place) / "many", writable=True) as store, _grown("the store", grew):
            written, file = 0, store.directory / "store.sqlite"
            for size in sizes:
                batch = min(100, size - written)  # those that are timed; the others come before, in one transaction
                store.save(_renamed(like, range(written, size - batch)))
                started = time.perf_counter()
                for record in _renamed(like, range(size - batch, size)):
                    store.save([record])
                each = (time.perf_counter() - started) / batch
                started = time.perf_counter()
                assert len(store.load([f"{number:064x}" for number in range(size - batch, size)])) == batch
                read = (time.perf_counter() - started) / batch
                written = size
                log = file.with_name(file.name + "-wal")
                kept = file.stat().st_size + (log.stat().st_size if log.exists() else 0)
                rows.append({"records": size, "write, ms": 1e3 * each, "read, ms": 1e3 * read, "MB": kept / 1e6})
    for name, run, count in (
        ("processes", PoolEngine(1).run, options.records),
        ("Ray", RayEngine(workers=1).run, max(10, options.records // 50)),
    ):
        heard: list[int] = []
        with _grown(name, grew):
            run(nothing, range(count), lambda event, heard=heard: _count(event, heard))
        assert len(heard) == count
    return {"rows": rows, "driver grew, MB": grew, "results": options.records}


def _count(event: Event, heard: list[int]) -> None:
    if isinstance(event, Finished):
        heard.append(event.index)


@contextmanager
def _grown(name: str, into: dict[str, float]) -> Iterator[None]:
    """Note by how many megabytes this process grows inside."""
    process = psutil.Process()
    before = process.memory_info().rss
    yield
    into[name] = (process.memory_info().rss - before) / 1e6


def _renamed(like: Any, numbers: range) -> list[Any]:
    return [like.model_copy(update={"key": f"{number:064x}"}) for number in numbers]


def _growth(options: Options) -> list[dict[str, Any]]:
    """Return processor seconds per iteration of one target, by slope between two lengths."""
    rows = []
    for factor, levels in _GROWTH.items():
        for level in levels:
            setup = build_setup(_scenario(**level))
            seen = setup.observe(build_defence("none"), 0).observation
            short, longer = (_seconds(seen, count) for count in (3, 13))
            count = sum(parameter.numel() for parameter in setup.model.parameters())
            told = ", ".join(str(value) for value in level.values())
            rows.append({"factor": factor, "level": told, "parameters": count, "iteration, s": (longer - short) / 10})
    return rows


def _seconds(seen: Any, iterations: int) -> float:
    with one_thread():
        started = time.process_time()
        ATTACKS.build("ig").run_many([seen], Budget(iterations), [0])
        return time.process_time() - started


def _page(found: dict[str, Any]) -> str:
    lines = [f"{found['cores']} cores, PyTorch {found['torch']}.", ""]
    if "engines" in found:
        lines += [*_table(found["engines"]), ""]
        rates = {row["engine"]: row["trials per hour"] for row in found["engines"]}
        pairs = [("two worker processes", "one worker process"), ("Ray, two cores", "Ray, one core")]
        lines += [f"{two}: {rates[two] / rates[one]:.2f} times {one}." for two, one in pairs] + [""]
    if "store" in found:
        lines += _table(found["store"]["rows"])
        grew = ", ".join(f"{name} {by:.1f} MB" for name, by in found["store"]["driver grew, MB"].items())
        told = f"{found['store']['results']:,} records, as many results of processes and a fiftieth of Ray's"
        lines += ["", f"The driver grew, over {told}: {grew}.", ""]
    if "growth" in found:
        lines += _table(found["growth"])
    return "\n".join(lines) + "\n"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return lines + ["| " + " | ".join(_told(name, value) for name, value in row.items()) + " |" for row in rows]


def _told(name: str, value: Any) -> str:
    if name == "overhead":
        return f"{value:.1%}"
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and value < 1000
        else f"{value:,.0f}"
        if not isinstance(value, str)
        else value
    )


if __name__ == "__main__":
    main()
