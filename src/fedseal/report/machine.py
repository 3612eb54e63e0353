"""The report for programs: JSON of a stable, versioned schema, without images.

Numbers that JSON has no token for are the strings "NaN", "Infinity" and "-Infinity"; levels are spelt as `--fail-on`
takes them. Within a schema version, keys are only ever added.
"""

from __future__ import annotations

import json
import math
from typing import Any

from fedseal._version import VERSION
from fedseal.audit.run import Run
from fedseal.audit.verdict import Cell, RiskLevel, Row
from fedseal.metrics.intervals import Interval
from fedseal.report.commands import cell_command

SCHEMA = "fedseal-report"
SCHEMA_VERSION = 1


def render_json(run: Run) -> str:
    """Return the run, its verdict and all records as JSON text."""
    return json.dumps(_without_bare_tokens(report_data(run)), indent=2, allow_nan=False) + "\n"


def report_data(run: Run) -> dict[str, Any]:
    """Return what `render_json` writes, as plain data."""
    verdict = run.verdict()
    statuses = [record.status for record in run.records]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "fedseal": VERSION,
        "command": run.command,
        "complete": len(run.records) >= run.planned,
        "trials": {
            "planned": run.planned,
            "ended": len(run.records),
            **{status: statuses.count(status) for status in ("ok", "failed", "refused")},
        },
        "verdict": {
            "level": _level(verdict.level),
            "sentence": verdict.sentence(),
            "rows": [_row(row) for row in verdict.rows],
        },
        "cells": [_cell(run, cell) for cell in verdict.cells],
        "scenarios": [scenario.model_dump(mode="json") for scenario in run.scenarios],
        "findings": {name: [f.model_dump(mode="json") for f in found] for name, found in run.findings.items()},
        "environment": dict(run.environment),
        "records": [record.model_dump() for record in run.records],
    }


def _row(row: Row) -> dict[str, Any]:
    worst = row.worst
    return {
        "scenario": row.scenario,
        "defence": row.defence,
        "level": _level(row.level),
        "worst": None if worst is None else {"attack": worst.attack, "aware": worst.aware},
    }


def _cell(run: Run, cell: Cell) -> dict[str, Any]:
    refused = cell.refused
    return {
        "scenario": cell.scenario,
        "defence": cell.defence,
        "attack": cell.attack,
        "aware": cell.aware,
        "level": _level(cell.level),
        "psnr": _interval(cell.psnr),
        "best_psnr": _interval(cell.best_psnr),
        "ssim": _interval(cell.ssim),
        "lpips": _interval(cell.lpips),
        "max_psnr": cell.max_psnr,
        "baseline": cell.baseline,
        "baseline_psnr": cell.baseline_psnr,
        "excess": _interval(cell.excess),
        "ok": len(cell.succeeded),
        "failed": len(cell.failed),
        "refused": None if refused is None else refused.message,
        "keys": [record.key for record in cell.records],
        "command": cell_command(run, cell),
    }


def _level(level: RiskLevel | None) -> str | None:
    return None if level is None else level.words.replace(" ", "-")


def _interval(interval: Interval | None) -> dict[str, float | int | None] | None:
    return None if interval is None else interval.as_dict()


def _without_bare_tokens(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): _without_bare_tokens(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_bare_tokens(item) for item in value]
    return value
