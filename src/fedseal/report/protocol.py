"""A protocol's answer: one table, one row of small charts and one sentence per factor, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedseal._version import VERSION
from fedseal.audit.factor_tables import FactorTable, factor_tables
from fedseal.audit.run import Run
from fedseal.core.errors import UsageError
from fedseal.core.files import write_atomically
from fedseal.metrics.scales import scale_called
from fedseal.report import words
from fedseal.report.html import template_environment
from fedseal.report.markdown import escaped
from fedseal.report.rows import csv_text

if TYPE_CHECKING:
    from pandas import DataFrame

WIDTH, HEIGHT = 220.0, 130.0
"""Of one small chart."""
_MARGIN = 14.0


@dataclass(frozen=True)
class Dot:
    """A level in a small chart: its place, the ends of its interval, and where guessing ends up."""

    words: str
    x: float
    y: float
    low: float
    high: float
    chance: float | None


@dataclass(frozen=True)
class Small:
    """One small chart: a table's levels from left to right, all charts of a page on one axis."""

    table: FactorTable
    dots: tuple[Dot, ...]

    @property
    def path(self) -> str:
        """SVG path data through all dots."""
        return "M" + " L".join(f"{dot.x:.1f} {dot.y:.1f}" for dot in self.dots) if self.dots else ""


def small_charts(tables: Sequence[FactorTable]) -> tuple[tuple[Small, ...], tuple[tuple[str, float], ...]]:
    """Return a chart per table, and the ticks (label, height) all of them share."""
    data = [[result.data() for result in table.results] for table in tables]
    keys = ("psnr", "low", "high", "chance")
    values = [one[key] for rows in data for one in rows for key in keys if one[key] is not None]
    bottom, top = (min(values), max(values)) if values else (0.0, 1.0)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 1000) if (top - bottom) / step <= 5)
    first, last = int(bottom // step) * step, (int(top // step) + 1) * step

    def height(value: float) -> float:
        return HEIGHT - (value - first) / (last - first) * HEIGHT

    charts = []
    for table, rows in zip(tables, data, strict=True):
        dots = []
        for place, one in enumerate(rows):
            if one["psnr"] is None:
                continue
            x = _MARGIN + (WIDTH - 2 * _MARGIN) * (place / (len(rows) - 1) if len(rows) > 1 else 0.5)
            ends = [one["psnr"] if one[key] is None else one[key] for key in ("low", "high")]
            chance = None if one["chance"] is None else height(one["chance"])
            said = f"{one['level']}: {one['psnr']:.1f} {one['unit']}, {one['reading']}"
            dots.append(Dot(said, x, height(one["psnr"]), height(ends[0]), height(ends[1]), chance))
        charts.append(Small(table, tuple(dots)))
    return tuple(charts), tuple((str(tick), height(tick)) for tick in range(first, last + 1, step))


def protocol_rows(tables: Sequence[FactorTable]) -> list[dict[str, Any]]:
    """Return one plain row per factor, defence and level."""
    return [
        {"factor": table.factor, "beside": table.surroundings, **result.data()}
        for table in tables
        for result in table.results
    ]


def protocol_frame(run: Run) -> DataFrame:
    """Return the tables of a run as a pandas frame (extra `frames`), one row per factor, defence and level."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError("frames need pandas.", hint="Install it: pip install 'fedseal[frames]'.") from error
    return pandas.DataFrame(protocol_rows(factor_tables(run)))


def render_protocol_markdown(run: Run) -> str:
    """Return the answers as Markdown: a sentence and a table per factor."""
    tables = factor_tables(run)
    parts = [f"# {_title(run)}\n"]
    for name in dict.fromkeys(table.factor for table in tables):
        parts.append(f"## {escaped(name)}\n")
        for table in (table for table in tables if table.factor == name):
            parts.append(f"{escaped(table.sentence())}\n\nUnder {escaped(table.surroundings)}:\n")
            score, unit = table.scale.title, table.scale.unit
            lines = [f"| level | attack | {score} ({unit}) | n | chance ({unit}) | reading |", "|---" * 6 + "|"]
            for one in (result.data() for result in table.results):
                cells = [one["level"], one["attack"] or "–", _psnr(one), str(one["n"]), _number(one["chance"])]
                lines.append("| " + " | ".join(escaped(cell) for cell in [*cells, one["reading"]]) + " |")
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def render_protocol_html(run: Run) -> str:
    """Return the answers as one self-contained HTML file."""
    tables = factor_tables(run)
    charts, ticks = small_charts(tables)
    by_factor = {
        name: [chart for chart in charts if chart.table.factor == name]
        for name in dict.fromkeys(table.factor for table in tables)
    }
    page = template_environment().get_template("protocol.html")
    text = page.render(
        run=run,
        version=VERSION,
        title=_title(run),
        factors=by_factor,
        ticks=ticks,
        width=WIDTH,
        height=HEIGHT,
        scale=scale_called(run.scale),
    )
    return words.printable(text)


def write_protocol(run: Run, directory: Path) -> Path:
    """Write `protocol.html`, `.md`, `.csv` and `.json` into a directory; return the page's path."""
    tables = factor_tables(run)
    if not tables:
        raise UsageError("nothing varies in this run.", hint="Give a key several values, see docs/scenario.md.")
    answers = [{"factor": t.factor, "beside": t.surroundings, "sentence": t.sentence()} for t in tables]
    machine = {"version": VERSION, "command": run.command, "answers": answers, "levels": protocol_rows(tables)}
    write_atomically(directory / "protocol.json", json.dumps(machine, indent=2, ensure_ascii=False) + "\n")
    write_atomically(directory / "protocol.csv", csv_text(protocol_rows(tables)))
    write_atomically(directory / "protocol.md", render_protocol_markdown(run))
    write_atomically(directory / "protocol.html", render_protocol_html(run))
    return directory / "protocol.html"


def _title(run: Run) -> str:
    return f"What decides the leak: {len(run.records)} of {run.planned} trials"


def _psnr(one: dict[str, Any]) -> str:
    if one["psnr"] is None:
        return "–"
    return f"{one['psnr']:.1f}" + ("" if one["low"] is None else f" [{one['low']:.1f}, {one['high']:.1f}]")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
