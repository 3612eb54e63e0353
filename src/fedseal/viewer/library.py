"""The runs below a directory as plain data for the page: lists, trials, pictures. Nothing is ever written.

Runs go by a hash of their place and trials by their key, so that no request names a path. What does not change is read
once: a run is read again when its store's files have changed.
"""

from __future__ import annotations

import fcntl
import math
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedseal.audit.comparison import compare_runs
from fedseal.audit.run import Run
from fedseal.audit.runner import open_run
from fedseal.core.errors import FedsealError, InputError
from fedseal.report.decision import decide
from fedseal.report.machine import comparison_data, report_data
from fedseal.report.png import encode_png
from fedseal.report.words import slug
from fedseal.report.write import training_beside
from fedseal.store.database import run_directories
from fedseal.store.records import TrialRecord

_FILES = ("store.sqlite", "store.sqlite-wal")


@dataclass(frozen=True)
class Shelved:
    """A run as it was read, and the state of its files at that time."""

    stamp: str
    run: Run | None
    problem: str = ""


class Library:
    """Runs at or below a directory.

    Args:
        place: where to look; runs that appear later are found too.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._shelf: dict[Path, Shelved] = {}
        self._lines: dict[Path, tuple[str, dict[str, Any]]] = {}
        self._lock = Lock()

    def runs(self) -> list[dict[str, Any]]:
        """Return a line for every run: what it is, how far, and its verdict."""
        return [self._line(directory) for directory in run_directories(self._place)]

    def run(self, identity: str) -> dict[str, Any]:
        """Return a run: page one in short, defences, and a line for every trial."""
        directory, run = self._find(identity)
        decision = decide(run, run.verdict(), training_beside(run))
        data = report_data(run)
        return self._line(directory) | {
            "tested": decision.tested,
            "certainty": decision.certainty,
            "advice": decision.advice.sentence,
            "sentence": data["verdict"]["sentence"],
            "rows": [_row(row) for row in data["verdict"]["rows"]],
            "trials": [_trial(record) for record in run.records],
        }

    def trial(self, identity: str, key: str) -> dict[str, Any]:
        """Return everything that is kept of a trial but its pictures, of which it says how many there are."""
        _, run = self._find(identity)
        record = _record(run, key)
        film = self._tensor(run, record, "film.at")
        originals = self._tensor(run, record, "originals")
        plain: dict[str, Any] = _finite(
            record.model_dump(include={"psnr", "ssim", "ranks", "line_up", "notes", "message", "trace", "knowledge"})
            | _trial(record)
            | {
                "images": 0 if originals is None or originals.ndim != 4 else len(originals),
                "film": [] if film is None else film.tolist(),
            }
        )
        return plain

    def picture(self, identity: str, key: str, kind: str, index: int, frame: int) -> bytes:
        """Return one picture as PNG: an original, what was rebuilt, or a frame of the film."""
        _, run = self._find(identity)
        names = {"original": "originals", "rebuilt": "reconstructions", "film": "film"}
        tensor = self._tensor(run, _record(run, key), names.get(kind, ""))
        try:
            if tensor is None or index < 0 or frame < 0:
                raise IndexError
            image = tensor[frame][index].float() / 255 if kind == "film" else tensor[index]
            return encode_png(image)
        except (IndexError, ValueError) as error:
            raise InputError("there is no such picture.") from error

    def compare(self, before: str, after: str) -> dict[str, Any]:
        """Return what changed between two runs."""
        plain: dict[str, Any] = _finite(comparison_data(compare_runs(self._find(before)[1], self._find(after)[1])))
        return plain

    def _line(self, directory: Path) -> dict[str, Any]:
        shelved = self._read(directory)
        kept = self._lines.get(directory)
        if kept is None or kept[0] != shelved.stamp:
            kept = shelved.stamp, self._describe(directory, shelved)
            self._lines[directory] = kept
        return kept[1] | {"live": _is_written(directory)}

    def _describe(self, directory: Path, shelved: Shelved) -> dict[str, Any]:
        common = {
            "id": _identity(directory),
            "name": str(directory.relative_to(self._place)) if directory != self._place else directory.resolve().name,
            "stamp": shelved.stamp,
            "problem": shelved.problem,
        }
        run = shelved.run
        if run is None:
            return common
        verdict = run.verdict()
        return common | {
            "started": run.started,
            "ended": run.ended,
            "planned": run.planned,
            "done": len(run.records),
            "failed": verdict.failed,
            "standing": None if verdict.standing is None else slug(verdict.standing),
            "headline": decide(run, verdict, training_beside(run)).headline,
            "scenarios": [scenario.name for scenario in run.scenarios],
            "defences": list(dict.fromkeys(row.defence for row in verdict.rows)),
            "attacks": list(dict.fromkeys(cell.attack for cell in verdict.cells)),
        }

    def _find(self, identity: str) -> tuple[Path, Run]:
        for directory in run_directories(self._place):
            if _identity(directory) == identity:
                shelved = self._read(directory)
                if shelved.run is None:
                    raise InputError(shelved.problem)
                return directory, shelved.run
        raise InputError("there is no such run.")

    def _read(self, directory: Path) -> Shelved:
        with self._lock:
            stamp = _stamp(directory)
            kept = self._shelf.get(directory)
            if kept is None or kept.stamp != stamp:
                try:
                    kept = Shelved(stamp, open_run(directory))
                except FedsealError as error:
                    kept = Shelved(stamp, None, str(error))
                self._shelf[directory] = kept
            return kept

    def _tensor(self, run: Run, record: TrialRecord, name: str) -> Tensor | None:
        """Return one tensor of a trial's file; None where it is missing, damaged or outside of the run."""
        if record.artefact is None:
            return None
        path = (run.directory / record.artefact).resolve()
        if not path.is_relative_to(run.directory.resolve()):
            return None
        try:
            with safe_open(str(path), framework="pt") as file:
                found: Tensor | None = file.get_tensor(name) if name in file.keys() else None  # noqa: SIM118
        except (OSError, SafetensorError):
            return None
        return found


def _identity(directory: Path) -> str:
    return sha256(str(directory.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _stamp(directory: Path) -> str:
    parts = []
    for name in _FILES:
        try:
            state = (directory / name).stat()
        except FileNotFoundError:
            continue
        parts.append(f"{state.st_mtime_ns}-{state.st_size}")
    return ".".join(parts)


def _is_written(directory: Path) -> bool:
    """Return whether an audit holds the writer's lock at this moment."""
    try:
        with (directory / ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _record(run: Run, key: str) -> TrialRecord:
    found = next((record for record in run.records if record.key == key), None)
    if found is None:
        raise InputError("there is no such trial.")
    return found


def _trial(record: TrialRecord) -> dict[str, Any]:
    return {
        "key": record.key,
        "scenario": record.scenario,
        "defence": record.defence,
        "attack": record.attack,
        "aware": record.aware,
        "target": record.target,
        "status": record.status,
        "mean": round(fmean(record.psnr), 2) if record.psnr and all(map(math.isfinite, record.psnr)) else None,
        "labels": record.label_accuracy,
        "seconds": round(record.seconds, 2),
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    standing = row["level"] or row["state"]
    return {name: row[name] for name in ("scenario", "defence", "control", "decided_by")} | {"standing": standing}


def _finite(value: Any) -> Any:
    """Return plain data in which numbers JSON has no token for are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
