"""The four readings of each defence: figures, the bar from prior to ideal, layers, the map of pixels and line-ups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedseal.audit.cells import Cell, Ideal, Row
from fedseal.audit.run import Run
from fedseal.metrics.scales import PSNR
from fedseal.report.charts import Axis
from fedseal.report.matrix import Matrix
from fedseal.report.png import data_uri
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

LINE_UPS = 3
"""Line-ups shown of a defence."""
LAYERS = 12
"""Layers shown, those that hold most."""
_TOP_DB = 50.0


@dataclass(frozen=True)
class Scale:
    """The stretch from what the prior gives to what the update holds, with what was found on it; in per cent."""

    axis: Axis
    prior: float | None
    ideal: float | None
    found: float | None

    @property
    def start(self) -> float:
        """Where the stretch begins."""
        return self.prior if self.prior is not None else 0.0

    @property
    def width(self) -> float:
        """How long it is."""
        return 0.0 if self.ideal is None else max(0.0, round(self.ideal - self.start, 2))


@dataclass(frozen=True)
class LayerBar:
    """What one layer's share of the upload holds alone: name, dB, and the length of its bar in per cent."""

    name: str
    psnr_db: float
    width: float


@dataclass(frozen=True)
class Candidate:
    """A picture in a line-up; None where withheld or missing."""

    picture: str | None
    is_original: bool


@dataclass(frozen=True)
class LineUpRow:
    """One original's line-up: what was rebuilt, the candidates most like it, and the original's rank."""

    target: int
    index: int
    rebuilt: str | None
    candidates: tuple[Candidate, ...]
    rank: int
    size: int


@dataclass(frozen=True)
class RowReadings:
    """All readings of a defence.

    Attributes:
        row: the defence.
        scale: the bar.
        layers: those that hold most, first.
        pixel_map: picture of which pixels are known, bright where the update tells them; None where it tells nothing.
        line_ups: of the worst cell, the best ranked first.
        state: whether pictures are `shown`, `redacted` or `missing`.
    """

    row: Row
    scale: Scale
    layers: tuple[LayerBar, ...]
    pixel_map: str | None
    line_ups: tuple[LineUpRow, ...]
    state: Literal["shown", "redacted", "missing"]


def row_readings(run: Run, matrix: Matrix, *, redact: bool) -> tuple[RowReadings, ...]:
    """Return the readings of every defence of a scenario that has any."""
    axis = _axis(matrix.rows)
    return tuple(_read(run, row, axis, redact) for row in matrix.rows if row.worst is not None)


def _read(run: Run, row: Row, axis: Axis, redact: bool) -> RowReadings:
    assert row.worst is not None
    best = max((cell for cell in row.cells if cell.psnr), key=lambda cell: cell.psnr.mean if cell.psnr else 0.0)
    ideal = row.ideal
    scale = Scale(
        axis,
        _place(axis, None if ideal is None else ideal.prior_db),
        _place(axis, None if ideal is None else ideal.psnr_db),
        _place(axis, best.psnr.mean if best.psnr else None),
    )
    line_ups = _line_ups(run, row.worst, redact)
    shown = any(one.rebuilt is not None for one in line_ups)
    return RowReadings(
        row,
        scale,
        () if ideal is None else _layers(ideal),
        None if redact or ideal is None or ideal.is_low else _pixel_map(run, ideal),
        line_ups,
        "redacted" if redact else "shown" if shown else "missing",
    )


def _axis(rows: Sequence[Row]) -> Axis:
    scale = next((cell.scale for row in rows for cell in row.cells if cell.psnr), PSNR)
    if scale is not PSNR:
        return Axis(0.0, scale.ceiling, scale)
    values = [cell.psnr.mean for row in rows for cell in row.cells if cell.psnr]
    for row in rows:
        if row.ideal is not None:
            values += [value for value in (row.ideal.prior_db, row.ideal.psnr_db) if value is not None]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min([5.0, *finite]), max([25.0, *finite])
    return Axis(max(0.0, 5 * math.floor(low / 5)), min(_TOP_DB, 5 * math.ceil(high / 5)))


def _place(axis: Axis, value: float | None) -> float | None:
    return None if value is None else axis.place(value)


def _layers(ideal: Ideal) -> tuple[LayerBar, ...]:
    """Return what each layer holds alone, on average over the targets read; bars begin at the prior."""
    names = dict.fromkeys(name for record in ideal.records for name in record.per_layer)
    values = {name: fmean(r.per_layer[name] for r in ideal.records if name in r.per_layer) for name in names}
    known = {name: min(value, 100.0) for name, value in values.items() if not math.isnan(value)}
    floor = ideal.prior_db if ideal.prior_db is not None else min(known.values(), default=0.0)
    top = max([floor + 1.0, *known.values()])
    chosen = sorted(known.items(), key=lambda item: -item[1])[:LAYERS]
    return tuple(
        LayerBar(name, value, round(100 * max(0.0, value - floor) / (top - floor), 1)) for name, value in chosen
    )


def _pixel_map(run: Run, ideal: Ideal) -> str | None:
    """Return the map of the first target read: how much of the prior's error the update takes away, pixel by pixel."""
    for record in ideal.records:
        errors = _stored_map(run, record)
        if errors is not None:
            prior = 10 ** (-record.prior_db / 10) if record.prior_db is not None else float(errors.max())
            return data_uri((1 - errors[0].mean(0, keepdim=True) / max(prior, 1e-12)).clamp(0, 1))
    return None


def _stored_map(run: Run, record: ReadingRecord) -> Tensor | None:
    if record.artefact is None:
        return None
    try:
        found = load_file(run.directory / record.artefact).get("pixel_map")
    except (OSError, SafetensorError):
        return None  # the page does without the picture
    return found.float() if found is not None and found.ndim == 4 and bool(torch.isfinite(found).all()) else None


def _line_ups(run: Run, cell: Cell, redact: bool) -> tuple[LineUpRow, ...]:
    ranked = [
        (record.ranks["correlation"][index], record, index)
        for record in cell.succeeded
        if "correlation" in record.ranks
        for index in range(len(record.top))
    ]
    ranked.sort(key=lambda entry: (entry[0], entry[1].target, entry[2]))
    return tuple(_line_up(run, record, index, rank, redact) for rank, record, index in ranked[:LINE_UPS])


def _line_up(run: Run, record: TrialRecord, index: int, rank: int, redact: bool) -> LineUpRow:
    pictures: Tensor | None = None
    rebuilt: Tensor | None = None
    if not redact:
        try:
            pictures, held = run.line_up(record, index), run.likenesses(record)
        except (OSError, KeyError, SafetensorError):
            pictures, held = None, None  # the page says that pictures are missing
        rebuilt = None if held is None else held[index]
    candidates = tuple(
        Candidate(None if pictures is None else data_uri(pictures[place]), chosen < 0)
        for place, chosen in enumerate(record.top[index])
    )
    shown = None if rebuilt is None or pictures is None else data_uri(rebuilt)
    return LineUpRow(record.target, index, shown, candidates, rank, record.line_up[index])
