"""Privacy against utility: every strength of every defence trained (PMM) and attacked (PSNR), point by point.

Both halves are ordinary runs with stores of their own, `training/` and `audit/` below the directory, so a killed
trade-off resumes like they do and either half can be reported by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedseal.audit.cells import Cell, Row
from fedseal.audit.run import Run
from fedseal.audit.runner import open_run, run_audit
from fedseal.core.errors import InputError
from fedseal.core.files import PathText, write_atomically
from fedseal.core.watcher import Watcher
from fedseal.metrics.intervals import Interval
from fedseal.metrics.scales import Scale, scale_called
from fedseal.tradeoff.scenario import TradeoffScenario
from fedseal.tradeoff.sweeps import Sweep
from fedseal.training.run import TrainingRun, Utility, open_training
from fedseal.training.runner import run_training

_SCENARIO_FILE = "scenario.json"
KEPT_UTILITY = 90.0
"""PMM a defence must keep to be called usable."""


@dataclass(frozen=True)
class Point:
    """A defence at one strength.

    Attributes:
        defence: its spec.
        utility: what training under it gave.
        row: how it fared under attack.
    """

    defence: str
    utility: Utility
    row: Row | None

    @property
    def pmm(self) -> Interval | None:
        """Accuracy kept, in per cent of the undefended twin's."""
        return self.utility.pmm

    def cell(self, *, aware: bool, attack: str | None = None) -> Cell | None:
        """Return the cell of an attack by one kind of attacker; the worst one over attacks by default.

        Undefended there is nothing to know, so both attackers have the same cells.
        """
        cells = () if self.row is None else self.row.cells
        known = aware and self.defence != "none"
        mine = [c for c in cells if c.psnr and c.aware == known and attack in (None, c.attack)]
        return max(mine, key=lambda c: c.psnr.mean if c.psnr else 0.0, default=None)

    @property
    def worst(self) -> Cell | None:
        """The cell with the highest PSNR over attacks and attackers."""
        both = [cell for aware in (False, True) if (cell := self.cell(aware=aware)) is not None]
        return max(both, key=lambda c: c.psnr.mean if c.psnr else 0.0, default=None)


@dataclass(frozen=True)
class Curve:
    """A sweep with its points, by falling utility."""

    sweep: Sweep
    points: tuple[Point, ...]

    @property
    def best(self) -> Point | None:
        """The point that leaks least in the worst case among those that keep `KEPT_UTILITY` and learnt something.

        Where chance is high, a model that learnt nothing keeps most of the accuracy too.
        """
        usable = [
            (point.worst.psnr.mean, place, point)
            for place, point in enumerate(self.points)
            if point.pmm is not None and point.pmm.mean >= KEPT_UTILITY and point.utility.learnt
            if point.worst and point.worst.psnr
        ]
        return min(usable)[2] if usable else None


@dataclass(frozen=True)
class Tradeoff:
    """A trade-off that was measured.

    Example:
        >>> import fedseal, tempfile
        >>> values = {"data": "faces:size=8", "model": "mlp", "clients": 2, "federation": {"rounds": 1}}
        >>> values |= {"defences": "topk", "attacks": "ig:iterations=2", "targets": 1}
        >>> result = fedseal.tradeoff(values, defences="topk:ratio=0.9", out=tempfile.mkdtemp())
        >>> result.undefended.defence, result.curves[0].points[0].defence
        ('none', 'topk:ratio=0.9')

    Attributes:
        directory: of its two runs.
        scenario: what was asked for.
        undefended: the point every curve starts from.
        curves: one per sweep.
        training, audit: the runs behind it.
    """

    directory: Path
    scenario: TradeoffScenario
    undefended: Point
    curves: tuple[Curve, ...]
    training: TrainingRun
    audit: Run

    @property
    def scale(self) -> Scale:
        """What leaks are measured in."""
        return scale_called(self.audit.scale)

    @property
    def caution(self) -> str:
        """Why nothing is recommended, in a sentence; empty if something can be."""
        return self.training.caution

    @property
    def points(self) -> tuple[Point, ...]:
        """Every point once, undefended first."""
        return (self.undefended, *(point for curve in self.curves for point in curve.points))

    @property
    def chance_psnr(self) -> float | None:
        """Mean PSNR of the best guess that needs no update, on the same targets."""
        worst = self.undefended.worst
        return None if worst is None else worst.baseline_psnr


def run_tradeoff(
    scenario: TradeoffScenario,
    directory: PathText,
    *,
    data_root: PathText | None = None,
    device: str = "cpu",
    workers: int = 1,
    command: str = "fedseal tradeoff",
    watcher: Watcher | None = None,
) -> Tradeoff:
    """Attack and train every point that `directory` does not hold yet, and return the whole.

    Args:
        scenario: what to measure.
        directory: of both halves; the same scenario there again resumes.
        data_root: where local data sets lie.
        device: where both halves run.
        workers: processes of the attacks, threads of the trainings.
        command: what to print as the way to reproduce it.
        watcher: told of progress.
    """
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    write_atomically(place / _SCENARIO_FILE, scenario.model_dump_json(indent=2) + "\n")
    options: Any = {
        "data_root": data_root,
        "device": device,
        "workers": workers,
        "command": command,
        "watcher": watcher,
    }
    run_audit([scenario.audit()], place / "audit", **options)
    run_training(scenario.training(), place / "training", **options)
    return open_tradeoff(place)


def holds_tradeoff(directory: PathText) -> bool:
    """Return whether a directory holds one."""
    return (Path(directory) / _SCENARIO_FILE).is_file()


def open_tradeoff(directory: PathText) -> Tradeoff:
    """Read the trade-off in a directory, as `fedseal.tradeoff` returned it.

    Example:
        >>> import fedseal
        >>> fedseal.open_tradeoff("nowhere")
        Traceback (most recent call last):
        fedseal.core.errors.InputError: nowhere holds no trade-off. Run `fedseal tradeoff --out` with it first.
    """
    directory = Path(directory)
    path = directory / _SCENARIO_FILE
    if not holds_tradeoff(directory):
        raise InputError(f"{directory} holds no trade-off.", hint="Run `fedseal tradeoff --out` with it first.")
    scenario = TradeoffScenario.model_validate_json(path.read_text(encoding="utf-8"))
    training, audit = open_training(directory / "training"), open_run(directory / "audit")
    utilities = {utility.defence: utility for utility in training.utilities}
    rows = {row.defence: row for row in audit.verdict().rows}
    points = {spec: Point(spec, utilities[spec], rows.get(spec)) for spec in scenario.specs}
    curves = tuple(
        Curve(sweep, tuple(sorted((points[spec] for spec in sweep.defences), key=_by_utility)))
        for sweep in scenario.sweeps
    )
    return Tradeoff(directory, scenario, points["none"], curves, training, audit)


def _by_utility(point: Point) -> float:
    return float("inf") if point.pmm is None else -point.pmm.mean
