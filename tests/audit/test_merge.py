"""Runs that were made apart become one, by what determines their trials; contradictions are named."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fedseal.audit.merge import merge_runs
from fedseal.audit.runner import open_run, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.core.errors import InputError, UsageError

SMALL: dict[str, Any] = {"data": "faces:size=8", "attacks": "ig:iterations=2", "targets": 1, "readings": 1}


def audit(directory: Path, **values: Any) -> Path:
    run_audit([Scenario(**{**SMALL, **values})], directory)
    return directory


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("parts")
    return audit(home / "one", defences=["none", "topk"]), audit(home / "two", defences=["none", "quantise"])


def test_parts_of_one_scenario_give_the_run_that_has_all(parts: tuple[Path, Path], tmp_path: Path) -> None:
    merged = merge_runs(parts, tmp_path / "all")
    assert merged.scenarios[0].defences == ("none", "topk", "quantise")
    assert merged.planned == len(merged.records) == 5  # none once, each defence by two attackers
    before = {r.key: r.psnr for part in parts for r in open_run(part).records}
    assert {record.key: record.psnr for record in merged.records} == before
    assert all(merged.images(record) is not None for record in merged.records)
    assert {reading.defence for reading in merged.readings} == {"none", "topk", "quantise"}
    again = run_audit(list(merged.scenarios), tmp_path / "all")
    assert [r.seconds for r in again.records if r.key in before] == [r.seconds for r in merged.records]  # nothing ran


def test_other_names_stay_other_scenarios(parts: tuple[Path, Path], tmp_path: Path) -> None:
    third = audit(tmp_path / "third", name="wider", client={"batch_size": 2})
    assert [one.name for one in merge_runs([parts[0], third], tmp_path / "all").scenarios] == ["audit", "wider"]


def test_one_name_for_two_set_ups_is_refused(parts: tuple[Path, Path], tmp_path: Path) -> None:
    third = audit(tmp_path / "third", client={"batch_size": 2})
    with pytest.raises(UsageError, match="called audit and differ in client"):
        merge_runs([parts[0], third], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_results_that_contradict_each_other_are_named(parts: tuple[Path, Path], tmp_path: Path) -> None:
    third = audit(tmp_path / "third")
    with sqlite3.connect(third / "store.sqlite") as db:
        (text,) = db.execute("SELECT record FROM trials").fetchone()
        db.execute("UPDATE trials SET record = ?", (json.dumps({**json.loads(text), "psnr": [99.0]}),))
    with pytest.raises(InputError, match=r"ig:iterations=2 on none, target 0 of audit \(.*one and .*third\)"):
        merge_runs([parts[0], third], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_what_failed_gives_way_to_what_went_well(parts: tuple[Path, Path], tmp_path: Path) -> None:
    third = audit(tmp_path / "third")
    with sqlite3.connect(third / "store.sqlite") as db:
        (text,) = db.execute("SELECT record FROM trials").fetchone()
        db.execute("UPDATE trials SET record = ?", (json.dumps({**json.loads(text), "status": "failed", "psnr": []}),))
    merged = merge_runs([third, parts[0]], tmp_path / "all")
    assert {record.status for record in merged.records} == {"ok"}


def test_one_run_a_taken_place_and_no_run_are_refused(parts: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two runs"):
        merge_runs(parts[:1], tmp_path / "all")
    with pytest.raises(UsageError, match="holds a run already"):
        merge_runs(parts, parts[0])
    with pytest.raises(InputError, match="holds no fedseal run"):
        merge_runs([parts[0], tmp_path], tmp_path / "all")
