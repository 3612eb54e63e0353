"""The JSON report: strict JSON, a fixed set of keys, and records that can be read back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.audit.scenario import Scenario
from fedseal.report.machine import SCHEMA_VERSION, render_json
from fedseal.store.findings import Finding
from fedseal.store.records import TrialRecord

TOP = {
    "started",
    "ended",
    "since_baseline",
    "schema", "schema_version", "fedseal", "command", "complete", "trials", "verdict", "cells", "scenarios", "findings",
    "environment", "records",
}  # fmt: skip
CELL = {
    "scenario", "defence", "attack", "aware", "level", "psnr", "best_psnr", "ssim", "lpips", "max_psnr", "baseline",
    "baseline_psnr", "excess", "ok", "failed", "refused", "keys", "command", "state", "decided_by", "leaks",
    "attack_failed", "singled_out", "victims", "labels", "why",
}  # fmt: skip


def load(text: str) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"bare {token}")

    return json.loads(text, parse_constant=refuse)


def test_the_schema_of_version_2(run: Run) -> None:
    data = load(render_json(run))
    assert SCHEMA_VERSION == 2
    assert set(data) == TOP
    assert (data["schema"], data["schema_version"]) == ("fedseal-report", 2)
    assert all(set(cell) == CELL for cell in data["cells"])
    assert set(data["verdict"]) == {"level", "state", "sentence", "rows"}
    keys = {"scenario", "defence", "level", "state", "decided_by", "ideal", "proven", "findings", "worst", "control"}
    assert all(set(row) == keys for row in data["verdict"]["rows"])


def test_it_says_what_the_verdict_says(run: Run) -> None:
    data, verdict = load(render_json(run)), run.verdict()
    assert data["verdict"]["sentence"] == verdict.sentence()
    assert RiskLevel.parse(data["verdict"]["level"]) == verdict.level
    assert data["trials"] == {"planned": 72, "ended": 72, "ok": 59, "failed": 1, "refused": 12}
    assert data["complete"] is True
    for cell, written in zip(verdict.cells, data["cells"], strict=True):
        assert written["psnr"] == (cell.psnr.as_dict() if cell.psnr else None)
        assert written["failed"] == len(cell.failed)
        assert (written["refused"] is not None) == (cell.refused is not None)
        assert written["keys"] == [record.key for record in cell.records]


def test_records_scenarios_and_findings_read_back(run: Run) -> None:
    data = load(render_json(run))
    for record, written in zip(run.records, data["records"], strict=True):
        back = TrialRecord.model_validate(written)
        assert back.model_copy(update={"cost": record.cost}) == record
    assert tuple(Scenario.model_validate(written) for written in data["scenarios"]) == run.scenarios
    assert {k: tuple(Finding.model_validate(f) for f in v) for k, v in data["findings"].items()} == run.findings


def test_numbers_json_has_no_token_for_are_strings(run: Run) -> None:
    first = run.records[0].model_copy(
        update={
            "objective": math.nan,
            "trace": ((0, math.inf), (1, -math.inf)),
            "cost": {"epsilon_accounted": math.inf},
        }
    )
    written = load(render_json(replace(run, records=(first,))))["records"][0]
    assert written["objective"] == "NaN"
    assert written["trace"] == [[0, "Infinity"], [1, "-Infinity"]]
    assert written["cost"] == {"epsilon_accounted": "Infinity"}
    back = TrialRecord.model_validate(written)
    assert back.objective is not None
    assert math.isnan(back.objective)
    assert back.trace == first.trace


def test_incomplete_and_empty_runs(run: Run, make_run: Callable[..., Run]) -> None:
    assert load(render_json(make_run(missing=1, targets=1)))["complete"] is False
    empty = load(render_json(replace(run, records=())))
    assert empty["verdict"]["level"] is None
    assert empty["cells"] == []


def test_hostile_text_stays_text(hostile: Run) -> None:
    text = render_json(hostile)
    text.encode("utf-8")
    assert load(text)["command"] == hostile.command


@pytest.mark.parametrize("word", ["originals", "data:image"])
def test_no_images(run: Run, word: str) -> None:
    assert word not in render_json(run)
