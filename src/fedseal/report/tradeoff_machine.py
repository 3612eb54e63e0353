"""A trade-off for programs: JSON of everything, CSV with one row for each strength, attack and kind of attacker.

Within a schema version, keys are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedseal._version import VERSION
from fedseal.audit.cells import Cell
from fedseal.report.machine import json_text
from fedseal.report.rows import csv_text
from fedseal.report.training_machine import training_data, utility_data
from fedseal.tradeoff.curves import KEPT_UTILITY, Point, Tradeoff

SCHEMA = "fedseal-tradeoff"
SCHEMA_VERSION = 1


def tradeoff_json(tradeoff: Tradeoff) -> str:
    """Return the trade-off with its training as JSON text; the trials have a `report.json` of their own."""
    recommended = {curve.sweep.family: curve.best for curve in tradeoff.curves}
    return json_text(
        {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "fedseal": VERSION,
            "command": tradeoff.audit.command,
            "scenario": tradeoff.scenario.model_dump(mode="json"),
            "caution": tradeoff.caution,
            "accuracy_to_keep": KEPT_UTILITY,
            "best_guess_psnr": tradeoff.chance_psnr,
            "recommended": {family: best.defence if best else None for family, best in recommended.items()},
            "points": list(_points(tradeoff)),
            "training": training_data(tradeoff.training),
        }
    )


def tradeoff_csv(tradeoff: Tradeoff) -> str:
    """Return every strength under every attack by either attacker, as CSV."""
    return csv_text(
        {**{key: value for key, value in point.items() if key != "attacks"}, **leak}
        for point in _points(tradeoff)
        for leak in point["attacks"] or [{}]
    )


def _points(tradeoff: Tradeoff) -> Iterator[dict[str, Any]]:
    chosen = {curve.best.defence for curve in tradeoff.curves if curve.best}
    yield _point(tradeoff, "", tradeoff.undefended, False)
    for curve in tradeoff.curves:
        for point in curve.points:
            yield _point(tradeoff, curve.sweep.family, point, point.defence in chosen)


def _point(tradeoff: Tradeoff, family: str, point: Point, chosen: bool) -> dict[str, Any]:
    cells = () if point.row is None else point.row.cells
    return {
        "family": family,
        "recommended": chosen,
        **utility_data(tradeoff.training, point.utility),
        "attacks": [_leak(cell) for cell in cells],
    }


def _leak(cell: Cell) -> dict[str, Any]:
    intervals = {"psnr": cell.psnr, "ssim": cell.ssim, "lpips": cell.lpips}
    return {
        "attack": cell.attack,
        "aware": cell.aware,
        **{name: None if value is None else value.as_dict() for name, value in intervals.items()},
        "risk": None if cell.standing is None else cell.standing.words,
        "message": next((record.message for record in cell.records if record.message), ""),
    }
