"""Geometry of the trade-off chart: accuracy kept to the right, leakage upwards; for SVG and PNG alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedseal.metrics.intervals import Interval
from fedseal.report.curves import HUES
from fedseal.tradeoff.curves import Point, Tradeoff

WIDTH, HEIGHT = 720.0, 380.0


@dataclass(frozen=True)
class Dot:
    """A point of a curve, with the ends of its two intervals."""

    name: str
    x: float
    y: float
    left: float
    right: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """A defence's curve under one kind of attacker.

    Attributes:
        family: which defence.
        aware: whether the attacker knows it.
        hue: index of its colour; both attackers of a defence share it.
        dots: by falling utility.
    """

    family: str
    aware: bool
    hue: int
    dots: tuple[Dot, ...]

    @property
    def path(self) -> str:
        """SVG path data through all dots."""
        return "M" + " L".join(f"{dot.x} {dot.y}" for dot in self.dots)


@dataclass(frozen=True)
class TradeoffChart:
    """All curves on shared axes.

    Attributes:
        lines: naive and aware, defence by defence.
        undefended: where they start.
        x_ticks, y_ticks: (label, position).
        chance: height of the best guess without an update, or None.
    """

    lines: tuple[Line, ...]
    undefended: Dot | None
    x_ticks: tuple[tuple[str, float], ...]
    y_ticks: tuple[tuple[str, float], ...]
    chance: float | None


def hue_degrees(hue: int) -> int:
    """Return the angle of a colour on the wheel, far apart for neighbours."""
    return (hue * 137 + 205) % 360


def tradeoff_chart(tradeoff: Tradeoff) -> TradeoffChart:
    """Place all points that were both trained and attacked."""
    places = _Places(tradeoff)
    lines = []
    for hue, curve in enumerate(tradeoff.curves):
        for aware in (False, True):
            dots = [dot for point in curve.points if (dot := places.dot(point, aware=aware)) is not None]
            if dots:
                lines.append(Line(curve.sweep.family, aware, hue % HUES, tuple(dots)))
    chance = None if tradeoff.chance_psnr is None else places.y(tradeoff.chance_psnr)
    return TradeoffChart(
        tuple(lines), places.dot(tradeoff.undefended, aware=False), places.x_ticks, places.y_ticks, chance
    )


class _Places:
    """The axes: PMM from a multiple of ten below the least, PSNR from a multiple of five."""

    def __init__(self, tradeoff: Tradeoff) -> None:
        points = [tradeoff.undefended, *(point for curve in tradeoff.curves for point in curve.points)]
        kept = [end for point in points if point.pmm for end in _ends(point.pmm)]
        leaks = [
            end
            for point in points
            for aware in (False, True)
            if (cell := point.cell(aware=aware)) is not None and cell.psnr is not None
            for end in _ends(cell.psnr)
        ]
        leaks += [] if tradeoff.chance_psnr is None else [tradeoff.chance_psnr]
        self._unit = tradeoff.scale.unit
        self._left = 10 * math.floor(min([90.0, *kept]) / 10)
        self._right = max(105, 10 * math.ceil(max([100.0, *kept]) / 10))
        self._bottom = 5 * math.floor(min([5.0, *leaks]) / 5)
        self._top = 5 * math.ceil(max([20.0, *leaks]) / 5)

    def x(self, pmm: float) -> float:
        return round(WIDTH * (pmm - self._left) / (self._right - self._left), 1)

    def y(self, psnr: float) -> float:
        return round(HEIGHT * (self._top - psnr) / (self._top - self._bottom), 1)

    @property
    def x_ticks(self) -> tuple[tuple[str, float], ...]:
        step = 10 if self._right - self._left <= 60 else 20
        return tuple((f"{tick} %", self.x(tick)) for tick in range(self._left, int(self._right) + 1, step))

    @property
    def y_ticks(self) -> tuple[tuple[str, float], ...]:
        step = 5 if self._top - self._bottom <= 40 else 10
        return tuple((f"{tick} {self._unit}", self.y(tick)) for tick in range(self._bottom, self._top + 1, step))

    def dot(self, point: Point, *, aware: bool) -> Dot | None:
        cell = point.cell(aware=aware)
        if point.pmm is None or cell is None or cell.psnr is None:
            return None
        left, right = _ends(point.pmm)
        low, high = _ends(cell.psnr)
        return Dot(
            point.defence,
            self.x(point.pmm.mean),
            self.y(cell.psnr.mean),
            self.x(left),
            self.x(right),
            self.y(low),
            self.y(high),
        )


def _ends(interval: Interval) -> tuple[float, float]:
    return (
        interval.mean if interval.low is None else interval.low,
        interval.mean if interval.high is None else interval.high,
    )
