"""What each defence cost: the means of its trials' cost reports, and only the columns that hold a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedseal.report.matrix import Matrix
from fedseal.report.words import duration, number, percentage, significant, size
from fedseal.store.records import TrialRecord


@dataclass(frozen=True)
class CostColumn:
    """A column of the cost table: field of `CostReport`, heading, explanation and how its figure is written."""

    field: str
    heading: str
    explanation: str
    write: Callable[[float | None], str]


@dataclass(frozen=True)
class CostRow:
    """A defence's mean costs, one entry per column of the table, and its remarks."""

    defence: str
    figures: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class CostTable:
    """The costs of all defences of a scenario."""

    scenario: str
    columns: tuple[CostColumn, ...]
    rows: tuple[CostRow, ...]


def _times(value: float | None) -> str:
    return number(value, 1)


COLUMNS: tuple[CostColumn, ...] = (
    CostColumn("bytes_up", "Upload", "length of the encoded update", size),
    CostColumn("bytes_down", "Download", "length of the download, where the defence changes it", size),
    CostColumn("seconds", "Time", "time the defence itself takes per round", duration),
    CostColumn("extra_passes", "Extra passes", "additional forward and backward passes", _times),
    CostColumn("state_bytes", "State", "kept by the client between rounds", size),
    CostColumn("density", "Density", "share of the update's values that are not zero", percentage),
    CostColumn("gradient_distance", "Distortion", "relative distance of the sent from the true update", significant),
    CostColumn("epsilon_nominal", "ε nominal", "as the method's own formula states it, per round", significant),
    CostColumn("epsilon_accounted", "ε accounted", "by an accountant, over all rounds so far", significant),
)

_DULL_WHEN_ZERO = frozenset({"extra_passes", "state_bytes"})


def cost_table(matrix: Matrix) -> CostTable:
    """Return the cost table of a scenario."""
    means = {row.defence: _means([r for cell in row.cells for r in cell.records if r.cost]) for row in matrix.rows}
    columns = tuple(
        column
        for column in COLUMNS
        if any(_speaks(column.field, figures.get(column.field)) for figures, _ in means.values())
    )
    rows = tuple(
        CostRow(defence, tuple(column.write(figures.get(column.field)) for column in columns), remarks)
        for defence, (figures, remarks) in means.items()
    )
    return CostTable(matrix.scenario, columns, rows)


def _speaks(field: str, value: float | None) -> bool:
    return value is not None and not (field in _DULL_WHEN_ZERO and value == 0)


def _means(records: Sequence[TrialRecord]) -> tuple[dict[str, float], tuple[str, ...]]:
    figures = {}
    for column in COLUMNS:
        values = [v for record in records if (v := _figure(record.cost.get(column.field))) is not None]
        if values:
            figures[column.field] = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else max(values)
    remarks = dict.fromkeys(str(remark) for record in records for remark in record.cost.get("remarks") or ())
    return figures, tuple(remarks)


def _figure(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
