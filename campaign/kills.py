"""Kills: an audit killed at random moments and resumed, against one that nobody disturbed.

What must hold: the same command resumes and ends, no finished trial is lost or run twice, the numbers are those of the
undisturbed audit to the bit, the store is sound, and no temporary file is left.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

from campaign.outcomes import Tally
from campaign.processes import Child, start
from fedseal.audit.runner import open_run
from fedseal.core.errors import FedsealError

_SCENARIO = """
data: faces:size=8
defences: [none, topk]
attacks: ["ig:iterations=60", "ig:iterations=61"]
targets: 1
readings: 0
"""
_LIMIT = 1800.0
_KEPT = 3
"""Kills of one run before it may end."""


def kills(count: int, place: Path, seed: int) -> Tally:
    """Kill so many times, by SIGKILL, SIGTERM and Ctrl-C, audits with one and two workers."""
    tally, source = Tally("kills"), random.Random(seed)
    reference = place / "reference"
    started = time.monotonic()
    assert _start(reference, 1).wait(_LIMIT), "the undisturbed audit did not end"
    took = time.monotonic() - started
    truth = _figures(reference)
    done, number = 0, 0
    while done < count:
        directory, workers = place / f"killed-{number}", 1 + number % 2
        for _ in range(min(_KEPT, count - done)):
            done += 1
            which = source.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            _kill_once(directory, workers, which, source.uniform(0.2, 1.0) * took)
            _examine(tally, f"{which.name}, {workers} worker(s)", directory, truth)
        _finish(tally, directory, workers, truth)
        shutil.rmtree(directory, ignore_errors=True)
        number += 1
    return tally


def _start(directory: Path, workers: int) -> Child:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "scenario.yaml").write_text(_SCENARIO)
    return start(["audit", "scenario.yaml", "--out", "run", "--workers", str(workers)], directory)


def _kill_once(directory: Path, workers: int, which: signal.Signals, after: float) -> None:
    child = _start(directory, workers)
    if not child.wait(after):
        child.send(which)
        child.wait(60)
    deadline = time.monotonic() + 30
    while _alive(child.pid) and time.monotonic() < deadline:  # workers notice that their parent is gone
        time.sleep(0.2)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _figures(directory: Path) -> dict[str, tuple[float, ...]]:
    return {record.key: record.psnr for record in open_run(directory / "run").records}


def _examine(tally: Tally, part: str, directory: Path, truth: dict[str, tuple[float, ...]]) -> None:
    """Count what a kill left behind."""
    if not (directory / "run" / "store.sqlite").exists():
        tally.add(part, "taken")
        return
    try:
        found = _figures(directory)
    except FedsealError as error:
        wrong = "" if "no plan" in str(error) else str(error)
        tally.add(part, "silently wrong" if wrong else "taken", f"corrupt store: {wrong}")
        return
    different = [key for key, psnr in found.items() if truth.get(key) != psnr]
    tally.add(part, "silently wrong" if different else "taken", f"{len(different)} differing trials")


def _finish(tally: Tally, directory: Path, workers: int, truth: dict[str, tuple[float, ...]]) -> None:
    """Let the same command end, and compare."""
    before = _times(directory)
    child = _start(directory, workers)
    if not child.wait(_LIMIT):
        child.send(signal.SIGKILL)
        tally.add("resumed", "hang", f"{workers} worker(s)")
        return
    found = _figures(directory)
    again = [key for key, seconds in before.items() if _times(directory).get(key) != seconds]
    stale = [path.name for path in (directory / "run").rglob(".*") if path.is_file() and path.name != ".lock"]
    wrong = []
    if found != truth:
        wrong.append(f"{len(truth.keys() - found.keys())} lost, others differ")
    if again:
        wrong.append(f"{len(again)} run twice")
    if stale:
        wrong.append(f"left {stale[:3]}")
    tally.add("resumed", "silently wrong" if wrong else "taken", "; ".join(wrong))


def _times(directory: Path) -> dict[str, float]:
    """Return how long each finished trial took, which no second run would repeat to the bit."""
    try:
        return {record.key: record.seconds for record in open_run(directory / "run").records if record.status == "ok"}
    except FedsealError:
        return {}
