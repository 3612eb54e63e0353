"""Geometry of the report's two charts; the templates draw it as inline SVG.

`chance_chart` sets reconstruction scores beside chance baselines on one PSNR axis with the risk bands. Positions are
per cent of the width, so that the chart follows the page and its text does not shrink. `sparkline` draws an objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from fedseal.audit.cells import Cell, Row
from fedseal.audit.levels import RiskLevel, thresholds
from fedseal.metrics.baselines import ORACLES
from fedseal.metrics.scales import PSNR, Scale
from fedseal.report.matrix import Matrix, Square
from fedseal.store.records import TrialRecord

AXIS_TOP_DB = 40.0
"""Scores above are drawn at the edge: there is nothing left to tell apart."""

SPARK_POINTS = 120
SPARK_WIDTH, SPARK_HEIGHT = 120.0, 32.0


@dataclass(frozen=True)
class Band:
    """A risk level's stretch of the axis, in per cent."""

    level: RiskLevel
    start: float
    width: float


@dataclass(frozen=True)
class Axis:
    """An axis of scores from `low` to `high`."""

    low: float
    high: float
    scale: Scale = PSNR

    def place(self, value: float) -> float:
        """Return the position of a value in per cent, at the edge where it lies outside."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    @property
    def bands(self) -> tuple[Band, ...]:
        """The risk bands, from low upwards."""
        edges = [*sorted((limit, level) for level, limit in thresholds(self.scale)), (self.high, RiskLevel.VERY_HIGH)]
        bands, start, level = [], self.low, RiskLevel.LOW
        for limit, following in edges:
            left, right = self.place(start), self.place(limit)
            bands.append(Band(level, left, round(right - left, 2)))
            start, level = limit, following
        return tuple(bands)

    @property
    def ticks(self) -> tuple[tuple[int, float], ...]:
        """The thresholds as (dB, position)."""
        return tuple((round(limit), self.place(limit)) for limit in sorted(self.scale.limits))


@dataclass(frozen=True)
class Mark:
    """A cell on the axis: its mean, its interval and whether it lies beyond the edge; in per cent."""

    cell: Cell
    at: float
    low: float
    high: float
    beyond: bool


@dataclass(frozen=True)
class Baseline:
    """What guessing gives: name, what it is in words, mean PSNR, position, and whether it looks at the original."""

    name: str
    words: str
    psnr: float
    at: float
    oracle: bool = False


@dataclass(frozen=True)
class Lane:
    """One attack on one defence: a mark per kind of attacker."""

    square: Square
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class LaneGroup:
    """A defence's lanes with its chance baselines, strongest first."""

    row: Row
    lanes: tuple[Lane, ...]
    baselines: tuple[Baseline, ...]


@dataclass(frozen=True)
class ChanceChart:
    """Scores and baselines of a scenario on one axis."""

    scenario: str
    axis: Axis
    groups: tuple[LaneGroup, ...]


def chance_chart(matrix: Matrix) -> ChanceChart:
    """Return the chart of a scenario; defences without a judged cell are left out."""
    means = {row.defence: baseline_means(row) for row in matrix.rows}
    scores = [end for row in matrix.rows for cell in row.cells if cell.psnr for end in _ends(cell)]
    scale = next((cell.scale for row in matrix.rows for cell in row.cells if cell.psnr), PSNR)
    axis = _axis([*scores, *(value for group in means.values() for value in group.values())], scale)
    groups = []
    for row in matrix.rows:
        squares = (matrix.square(row, attack) for attack in matrix.attacks)
        lanes = tuple(
            Lane(square, tuple(_mark(axis, cell) for cell in square.cells if cell.psnr))
            for square in squares
            if square.worst is not None
        )
        baselines = tuple(
            Baseline(said, scale.guesses.get(name, ""), value, axis.place(value), name in ORACLES)
            for name, value in sorted(means[row.defence].items(), key=partial(_by_weight, row))
            for said in [baseline_name(name, scale.noun)]
        )
        if lanes:
            groups.append(LaneGroup(row, lanes, baselines))
    return ChanceChart(matrix.scenario, axis, tuple(groups))


def _by_weight(row: Row, item: tuple[str, float]) -> tuple[bool, bool, float]:
    """Order guesses: the one the verdict judges by, other attainable ones, then those that look at the original."""
    name, value = item
    return row.worst is None or name != row.worst.baseline, name in ORACLES, -value


def baseline_name(key: str, noun: str = "image") -> str:
    """Return a baseline's name in words, of what a sample is called."""
    return {"nearest": f"nearest public {noun}", "flat": "flat colour"}.get(key, key.replace("_", " "))


def baseline_means(row: Row) -> dict[str, float]:
    """Return the mean PSNR of every baseline over the trials behind a row's worst cell."""
    means: dict[str, list[float]] = {}
    for record in row.worst.succeeded if row.worst else ():
        for name, values in record.baselines.items():
            if values:
                means.setdefault(name, []).append(fmean(values))
    return {name: fmean(values) for name, values in means.items()}


def _axis(values: Sequence[float], scale: Scale) -> Axis:
    if scale is not PSNR:
        return Axis(0.0, scale.ceiling, scale)
    finite = [value for value in values if math.isfinite(value)]
    low, high = min([5.0, *finite]), max([22.0, *finite])
    return Axis(max(0.0, 5 * math.floor(low / 5)), min(AXIS_TOP_DB, 5 * math.ceil(high / 5)))


def _ends(cell: Cell) -> tuple[float, float]:
    assert cell.psnr is not None
    low = cell.psnr.mean if cell.psnr.low is None else cell.psnr.low
    high = cell.psnr.mean if cell.psnr.high is None else cell.psnr.high
    return low, high


def _mark(axis: Axis, cell: Cell) -> Mark:
    assert cell.psnr is not None
    low, high = _ends(cell)
    return Mark(cell, axis.place(cell.psnr.mean), axis.place(low), axis.place(high), cell.psnr.mean > axis.high)


@dataclass(frozen=True)
class Sparkline:
    """The attacker's objective in the best trial of a cell.

    Attributes:
        cell: whose.
        target: index of the trial's batch.
        path: SVG path data in a box of `SPARK_WIDTH` x `SPARK_HEIGHT`.
        iterations: the last one traced.
        first, last: the objective there.
        logarithmic: whether the vertical axis is.
    """

    cell: Cell
    target: int
    path: str
    iterations: int
    first: float
    last: float
    logarithmic: bool


def sparkline(cell: Cell) -> Sparkline | None:
    """Return the trace of the trial that recovered most, or None where no trial kept a trace."""
    traced = [record for record in cell.succeeded if len(_finite(record)) > 1]
    if not traced:
        return None
    record = max(traced, key=lambda r: max(r.psnr, default=-math.inf))
    points = _thin(_finite(record))
    values = [value for _, value in points]
    logarithmic = min(values) > 0 and max(values) > 10 * min(values)
    heights = [math.log10(value) for value in values] if logarithmic else values
    (start, end), (bottom, top) = (points[0][0], points[-1][0]), (min(heights), max(heights))
    steps = [
        f"{SPARK_WIDTH * (step - start) / max(end - start, 1):.1f} "
        f"{2 + (SPARK_HEIGHT - 4) * (top - height) / ((top - bottom) or 1):.1f}"
        for (step, _), height in zip(points, heights, strict=True)
    ]
    return Sparkline(cell, record.target, "M" + " L".join(steps), end, values[0], values[-1], logarithmic)


def _finite(record: TrialRecord) -> list[tuple[int, float]]:
    return sorted((step, value) for step, value in record.trace if math.isfinite(value))


def _thin(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    stride = max(1, math.ceil(len(points) / SPARK_POINTS))
    return [*points[:-1:stride], points[-1]]
