"""From trial records to a verdict: risk levels per cell, per defence and overall.

Levels follow FedLeak (Sec. 5.3): very high from 20 dB PSNR, high from 15, medium from 10, low below. A reconstruction
that does not beat what anyone could guess is no leak: where the interval of the paired difference to the best chance
baseline reaches zero, the level is low, whatever the PSNR.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import fmean

from fedseal.core.errors import UsageError
from fedseal.metrics.intervals import Interval, mean_interval
from fedseal.store.records import TrialRecord


class RiskLevel(IntEnum):
    """How bad a leak is; ordered."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2
    VERY_HIGH = 3

    @property
    def words(self) -> str:
        """The level as people write it."""
        return self.name.lower().replace("_", " ")

    @classmethod
    def parse(cls, text: str) -> RiskLevel:
        """Parse `very-high`, `very high`, `high`, ..."""
        name = text.strip().upper().replace("-", "_").replace(" ", "_")
        if name not in cls.__members__:
            levels = ", ".join(level.words.replace(" ", "-") for level in cls)
            raise UsageError(f"there is no risk level {text!r}.", hint=f"Use one of {levels}.")
        return cls[name]


THRESHOLDS_DB: tuple[tuple[RiskLevel, float], ...] = (
    (RiskLevel.VERY_HIGH, 20.0),
    (RiskLevel.HIGH, 15.0),
    (RiskLevel.MEDIUM, 10.0),
)


def level_of(psnr_db: float, excess_low_db: float) -> RiskLevel:
    """Return the level of a mean PSNR whose excess over chance is at least `excess_low_db` (interval's lower end)."""
    if excess_low_db <= 0:
        return RiskLevel.LOW
    return next((level for level, limit in THRESHOLDS_DB if psnr_db >= limit), RiskLevel.LOW)


@dataclass(frozen=True)
class Cell:
    """All trials of one attack, by one kind of attacker, on one defence in one scenario.

    Attributes:
        scenario, defence, attack, aware: which cell.
        records: all its trials, failed and refused ones too.
        psnr: mean over trials with its interval; None if no trial succeeded.
        best_psnr: the same with replacement ("attacker-best").
        ssim: as psnr.
        lpips: as psnr; None without weights.
        baseline: name of the strongest chance baseline.
        baseline_psnr: its mean.
        excess: mean paired difference to that baseline, with its interval.
        level: the risk.
        max_psnr: the best recovered single image.
    """

    scenario: str
    defence: str
    attack: str
    aware: bool
    records: tuple[TrialRecord, ...]
    psnr: Interval | None = None
    best_psnr: Interval | None = None
    ssim: Interval | None = None
    lpips: Interval | None = None
    baseline: str | None = None
    baseline_psnr: float | None = None
    excess: Interval | None = None
    level: RiskLevel | None = None
    max_psnr: float | None = None

    @property
    def failed(self) -> tuple[TrialRecord, ...]:
        """Trials that ran and broke."""
        return tuple(r for r in self.records if r.status == "failed")

    @property
    def refused(self) -> TrialRecord | None:
        """A trial the set-up does not allow, if any."""
        return next((r for r in self.records if r.status == "refused"), None)

    @property
    def succeeded(self) -> tuple[TrialRecord, ...]:
        """Trials with scores."""
        return tuple(r for r in self.records if r.status == "ok")


@dataclass(frozen=True)
class Row:
    """A defence in a scenario, judged by its worst cell.

    Attributes:
        scenario, defence: which row.
        cells: one per attack and kind of attacker.
        worst: the cell that counts; None if nothing ran.
    """

    scenario: str
    defence: str
    cells: tuple[Cell, ...]
    worst: Cell | None

    @property
    def level(self) -> RiskLevel | None:
        """The risk of the worst cell."""
        return self.worst.level if self.worst else None


@dataclass(frozen=True)
class Verdict:
    """What an audit says."""

    rows: tuple[Row, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells of all rows."""
        return tuple(cell for row in self.rows for cell in row.cells)

    @property
    def failed(self) -> int:
        """Number of trials that broke."""
        return sum(len(cell.failed) for cell in self.cells)

    @property
    def level(self) -> RiskLevel | None:
        """The worst level over all rows."""
        return max((row.level for row in self.rows if row.level is not None), default=None)

    def sentence(self) -> str:
        """Return the verdict in one or two plain sentences."""
        judged = [row for row in self.rows if row.worst is not None and row.level is not None]
        if not judged:
            return "Nothing could be judged: no trial succeeded."
        worst: dict[str, Row] = {}  # a defence is as good as in the scenario where it does worst
        for row in judged:
            worst[row.defence] = max(worst.get(row.defence, row), row, key=_rank)
        bare = worst.pop("none", None)
        parts = [] if bare is None else [f"Undefended, this federation's risk is {_finding(bare)}."]
        if worst:
            best = min(worst.values(), key=_rank)
            lead = "The safest defence audited is" if len(worst) > 1 else "The defence audited is"
            parts.append(f"{lead} {best.defence}: with it the risk is {_finding(best)}.")
        return " ".join(parts)


def judge(records: Iterable[TrialRecord], *, seed: int = 0) -> Verdict:
    """Group records into cells and rows, in order of first appearance, and judge them."""
    grouped: dict[tuple[str, str, str, bool], list[TrialRecord]] = {}
    for record in records:
        grouped.setdefault((record.scenario, record.defence, record.attack, record.aware), []).append(record)
    rows: dict[tuple[str, str], list[Cell]] = {}
    for (scenario, defence, attack, aware), members in grouped.items():
        cell = _judge_cell(Cell(scenario, defence, attack, aware, tuple(members)), seed)
        rows.setdefault((scenario, defence), []).append(cell)
    return Verdict(
        tuple(
            Row(scenario, defence, tuple(cells), max((c for c in cells if c.psnr), key=_severity, default=None))
            for (scenario, defence), cells in rows.items()
        )
    )


def _judge_cell(cell: Cell, seed: int) -> Cell:
    done = cell.succeeded
    if not done:
        return cell
    psnr = _trial_means(r.psnr for r in done)
    baselines = {name: _trial_means(r.baselines[name] for r in done) for name in done[0].baselines}
    strongest = max(baselines, key=lambda name: sum(baselines[name]))
    chance = baselines[strongest]
    excess = mean_interval([p - c for p, c in zip(psnr, chance, strict=True)], seed=seed)
    mean = mean_interval(psnr, seed=seed)
    lpips = [r.lpips for r in done if r.lpips is not None]
    return Cell(
        cell.scenario,
        cell.defence,
        cell.attack,
        cell.aware,
        cell.records,
        psnr=mean,
        best_psnr=mean_interval(_trial_means(r.psnr_best for r in done), seed=seed),
        ssim=mean_interval(_trial_means(r.ssim for r in done), seed=seed),
        lpips=mean_interval(_trial_means(lpips), seed=seed) if len(lpips) == len(done) else None,
        baseline=strongest,
        baseline_psnr=sum(chance) / len(chance),
        excess=excess,
        level=level_of(mean.mean, excess.mean if excess.low is None else excess.low),
        max_psnr=max(value for r in done for value in r.psnr),
    )


def _trial_means(values: Iterable[Sequence[float]]) -> list[float]:
    """Average within each trial: images of one batch are not independent, batches are."""
    return [fmean(part) for part in values]


def _severity(cell: Cell) -> tuple[int, float]:
    return (int(cell.level or 0), cell.psnr.mean if cell.psnr else float("-inf"))


def _rank(row: Row) -> tuple[int, float]:
    assert row.worst is not None
    return _severity(row.worst)


def _finding(row: Row) -> str:
    cell = row.worst
    assert cell is not None
    assert cell.psnr is not None
    assert cell.level is not None
    who = "a defence-aware attacker" if cell.aware else "an attacker"
    method = cell.attack.partition(":")[0]
    text = f"{cell.level.words}: {who} using {method} rebuilds its images at {cell.psnr.mean:.1f} dB PSNR"
    return f"{text} (guessing without the update gives {cell.baseline_psnr:.1f})"
