"""The report for programs: JSON of a stable, versioned schema, without images.

Numbers that JSON has no token for are the strings "NaN", "Infinity" and "-Infinity"; levels are spelt as `--fail-on`
takes them. Within a schema version, keys are only ever added. Since version 2 a level may be null: the state says why.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from fedseal._version import VERSION
from fedseal.audit.cells import Cell, Ideal, Row, Standing
from fedseal.audit.comparison import Comparison, RowChange
from fedseal.audit.evidence import Victims
from fedseal.audit.nearness import row_findings
from fedseal.audit.run import Run
from fedseal.audit.why import reasons
from fedseal.metrics.intervals import Interval
from fedseal.metrics.picked import Picked
from fedseal.report.commands import cell_command

SCHEMA = "fedseal-report"
SCHEMA_VERSION = 2


def render_json(run: Run, comparison: Comparison | None = None) -> str:
    """Return the run, its verdict and all records as JSON text, and what changed since a baseline."""
    data = report_data(run) | {"since_baseline": None if comparison is None else comparison_data(comparison)}
    return json_text(data)


def json_text(data: Any) -> str:
    """Return plain data as JSON text that every parser takes."""
    return json.dumps(_without_bare_tokens(data), indent=2, allow_nan=False) + "\n"


def report_data(run: Run) -> dict[str, Any]:
    """Return what `render_json` writes, as plain data."""
    verdict = run.verdict()
    statuses = [record.status for record in run.records]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "fedseal": VERSION,
        "command": run.command,
        "started": run.started or None,
        "ended": run.ended or None,
        "complete": len(run.records) >= run.planned,
        "trials": {
            "planned": run.planned,
            "ended": len(run.records),
            **{status: statuses.count(status) for status in ("ok", "failed", "refused")},
        },
        "verdict": {
            "level": _word(verdict.level),
            "state": _word(verdict.standing),
            "sentence": verdict.sentence(),
            "rows": [_row(run, row) for row in verdict.rows],
        },
        "cells": [_cell(run, cell) for cell in verdict.cells],
        "scenarios": [scenario.model_dump(mode="json") for scenario in run.scenarios],
        "findings": {name: [f.model_dump(mode="json") for f in found] for name, found in run.findings.items()},
        "environment": dict(run.environment),
        "records": [record.model_dump() for record in run.records],
    }


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data."""
    return {
        "sentence": comparison.sentence(),
        "before": comparison.before,
        "after": comparison.after,
        "confidence_of_each": comparison.level,
        "rows": [_row_change(row) for row in comparison.rows],
        "new": [list(key) for key in comparison.new],
        "gone": [list(key) for key in comparison.gone],
    }


def _row_change(row: RowChange) -> dict[str, Any]:
    return {
        "scenario": row.scenario,
        "defence": row.defence,
        "direction": row.direction,
        "before": _word(row.before),
        "after": _word(row.after),
        "held_db": row.held,
        "changes": [
            {
                "attack": cell.key[2],
                "aware": cell.key[3],
                "reading": change.reading.name,
                "unit": change.reading.unit,
                "before": change.before,
                "after": change.after,
                "difference": _interval(change.difference),
                "paired": change.paired,
                "direction": change.direction,
            }
            for cell in row.cells
            for change in cell.changes
        ],
    }


def _row(run: Run, row: Row) -> dict[str, Any]:
    worst = row.worst
    return {
        "scenario": row.scenario,
        "defence": row.defence,
        "control": run.is_control(row),
        "level": _word(row.level),
        "state": None if row.state is None else row.state.words.replace(" ", "-"),
        "decided_by": None if worst is None else worst.decided,
        "ideal": _ideal(row.ideal),
        "proven": None if row.proven is None else asdict(row.proven),
        "findings": [found.model_dump(mode="json") for found in row_findings(row)],
        "worst": None if worst is None else {"attack": worst.attack, "aware": worst.aware},
    }


def _cell(run: Run, cell: Cell) -> dict[str, Any]:
    refused = cell.refused
    return {
        "scenario": cell.scenario,
        "defence": cell.defence,
        "attack": cell.attack,
        "aware": cell.aware,
        "level": _word(cell.level),
        "state": None if cell.state is None else cell.state.words.replace(" ", "-"),
        "decided_by": cell.decided,
        "leaks": {name: _word(level) for name, level in cell.leaks},
        "attack_failed": cell.attack_failed,
        "singled_out": _picked(cell.picked),
        "victims": _victims(cell.victims),
        "labels": None
        if cell.labels is None
        else {"accuracy": _interval(cell.labels.accuracy), "chance": cell.labels.chance, "leaked": cell.labels.leaked},
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
        "why": [found.model_dump(mode="json") for found in reasons(cell)],
        "keys": [record.key for record in cell.records],
        "command": cell_command(run, cell),
    }


def _word(standing: Standing | None) -> str | None:
    return None if standing is None else standing.words.replace(" ", "-")


def _picked(picked: Picked | None) -> dict[str, Any] | None:
    if picked is None:
        return None
    return {
        "similarity": picked.similarity,
        "line_up": picked.size,
        "count": picked.count,
        "n": picked.n,
        "first": _interval(picked.first),
        "first_5_percent": _interval(picked.near),
        "chance": picked.chance,
        "p_first": picked.p_first,
        "p_ranks": picked.p_ranks,
        "comparisons": picked.tried,
        "significant": picked.significant,
    }


def _victims(victims: Victims | None) -> dict[str, Any] | None:
    if victims is None:
        return None
    return {
        "count": victims.count,
        "n": victims.n,
        "best_psnr": victims.best_psnr,
        "level": _word(victims.level),
        "shares": {_word(level): _interval(share) for level, share in victims.shares.items()},
    }


def _ideal(ideal: Ideal | None) -> dict[str, Any] | None:
    if ideal is None:
        return None
    return {
        "psnr_db": ideal.psnr_db,
        "best_db": ideal.best_db,
        "prior_db": ideal.prior_db,
        "gain_db": ideal.gain_db,
        "at_least": ideal.at_least,
        "low": ideal.is_low,
        "level": _word(ideal.level),
        "reason": ideal.reason,
        "targets": [reading.model_dump() for reading in ideal.records],
    }


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
