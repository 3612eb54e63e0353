"""Comparisons: noise is no change, what got worse is found and ends with 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from rich.console import Console
from typer.testing import CliRunner

import fedseal
from fedseal.audit.cells import Cell
from fedseal.audit.comparison import CONFIDENCE, READINGS, _changes, compare_runs
from fedseal.audit.run import Run
from fedseal.cli import app
from fedseal.core.errors import UsageError
from fedseal.report.comparison import render_comparison
from fedseal.report.html import render_html
from fedseal.report.machine import comparison_data, json_text
from fedseal.store.records import TrialRecord

MakeRun = Callable[..., Run]


def changed(run: Run, change: Callable[[TrialRecord], dict[str, object]], defence: str = "none") -> Run:
    """Return the run with other scores of a defence."""
    records = [r.model_copy(update=change(r)) if r.defence == defence and r.status == "ok" else r for r in run.records]
    return replace(run, records=tuple(records))


def shifted(by: Callable[[TrialRecord], float]) -> Callable[[TrialRecord], dict[str, object]]:
    return lambda record: {"psnr": tuple(value + by(record) for value in record.psnr)}


def test_a_run_is_the_same_as_itself(run: Run) -> None:
    found = compare_runs(run, run)
    assert {row.direction for row in found.rows} == {"same"}
    assert "Nothing changed beyond noise in 3 defence(s)" in found.sentence()
    assert not found.new
    assert not found.gone


def test_a_shift_of_every_batch_is_worse_and_its_reverse_better(run: Run) -> None:
    later = changed(run, shifted(lambda r: 3 + 0.1 * r.target))
    assert [row.defence for row in compare_runs(run, later).worse] == ["none"]
    assert [row.defence for row in compare_runs(later, run).better] == ["none"]
    cell, change = compare_runs(run, later).worse[0].telling[0]
    assert cell.key[1] == "none"
    assert change.paired
    assert change.difference.mean == pytest.approx(3.25, abs=0.3)


def test_noise_is_no_change_in_nineteen_of_twenty_pairs_of_runs(make_run: MakeRun) -> None:
    """All readings of all cells together: of sixty pairs of runs that differ by chance alone, three are expected."""
    base = make_run(defences=("none",), attacks=("ig", "dlg"), targets=8, batch=1)
    cells = [c for c in base.verdict().cells if c.succeeded]
    level = 1 - (1 - CONFIDENCE) / (len(READINGS) * len(cells))
    draw = Random(0)

    def redrawn(cell: Cell) -> Cell:
        records = [
            r.model_copy(update={"psnr": (15 + draw.gauss(0, 2),), "label_accuracy": float(draw.random() < 0.5)})
            for r in cell.records
        ]
        return replace(cell, records=tuple(records))

    for paired in (True, False):
        alarms = 0
        for _ in range(60):
            changes = [c for cell in cells for c in _changes(redrawn(cell), redrawn(cell), level, paired=paired)]
            alarms += any(change.direction != "same" for change in changes)
        assert alarms <= 8, paired  # 3 expected; more than 8 in one of 300


def test_a_small_change_is_none_however_sure_it_is(run: Run) -> None:
    assert not compare_runs(run, changed(run, shifted(lambda r: 0.4))).worse


def test_labels_and_line_ups_count_too(make_run: MakeRun) -> None:
    base = make_run(defences=("none",), attacks=("ig",), targets=12)
    blind = changed(base, lambda r: {"label_accuracy": 0.0})
    assert compare_runs(blind, changed(base, lambda r: {"label_accuracy": 1.0})).worse
    lost = changed(base, lambda r: {"ranks": {"correlation": (40,) * len(r.psnr)}})
    assert compare_runs(lost, changed(base, lambda r: {"ranks": {"correlation": (1,) * len(r.psnr)}})).worse


def test_four_turned_labels_are_not_yet_a_change(make_run: MakeRun) -> None:
    base = make_run(defences=("none",), attacks=("ig", "dlg"), targets=4)
    blind = changed(base, lambda r: {"label_accuracy": 0.0})
    assert not compare_runs(blind, changed(base, lambda r: {"label_accuracy": 1.0})).worse


def test_what_the_update_holds_counts(run: Run) -> None:
    readings = tuple(
        r if r.defence == "none" or r.psnr_db is None else r.model_copy(update={"psnr_db": r.psnr_db + 4})
        for r in run.readings
    )
    found = compare_runs(run, replace(run, readings=readings))
    assert {row.defence for row in found.worse} == set(run.scenarios[0].defences) - {"none"}


def test_other_batches_are_compared_without_pairs(run: Run) -> None:
    other = replace(run, scenarios=tuple(s.model_copy(update={"seed": 8}) for s in run.scenarios))
    found = compare_runs(run, changed(other, shifted(lambda r: 12.0)))
    _, change = found.worse[0].telling[0]
    assert not change.paired


def test_cells_of_one_run_only_are_named_and_strangers_refused(make_run: MakeRun) -> None:
    one, two = make_run(attacks=("ig",)), make_run(attacks=("ig", "dlg"))
    found = compare_runs(one, two)
    assert {key[2] for key in found.new} == {"dlg"}
    assert not found.gone
    with pytest.raises(UsageError, match="in common"):
        compare_runs(one, make_run(scenarios=("other",)))


def test_reports_tell_what_changed(run: Run) -> None:
    found = compare_runs(run, changed(run, shifted(lambda r: 3 + 0.1 * r.target)))
    html = render_html(run, comparison=found)
    assert "Since the baseline" in html
    assert "likeness of what was rebuilt" in html
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_comparison(found))
    assert "worse" in console.export_text()
    data = json.loads(json_text(comparison_data(found)))
    assert data["rows"][0]["direction"] == "worse"
    assert data["rows"][0]["changes"][0]["difference"]["low"] > 0


def test_the_commands_end_with_1_where_something_got_worse(tmp_path: Path) -> None:
    common = {"data": "faces:size=8", "attacks": "ig:iterations=2", "targets": 4, "readings": 0}
    weak = fedseal.audit(**common, defences=["none", "topk:ratio=0.9"], out=tmp_path / "weak")
    assert weak.started <= weak.ended
    cli = CliRunner()
    same = cli.invoke(app, ["compare", str(tmp_path / "weak"), str(tmp_path / "weak")])
    assert same.exit_code == 0, same.output
    assert "Nothing changed" in same.output
    from fedseal.store.database import Store

    with Store(tmp_path / "weak", writable=True) as store:  # an earlier run in which the attack did worse by 6 dB
        store.save(r.model_copy(update={"psnr": tuple(v - 6 - 0.1 * r.target for v in r.psnr)}) for r in weak.records)
    fedseal.audit(**common, defences=["none", "topk:ratio=0.9"], out=tmp_path / "now")
    worse = cli.invoke(app, ["compare", str(tmp_path / "weak"), str(tmp_path / "now"), "--json"])
    assert worse.exit_code == 1, worse.output
    assert json.loads(worse.output)["rows"][0]["direction"] == "worse"
    told = cli.invoke(app, ["report", str(tmp_path / "now"), "--baseline", str(tmp_path / "weak")])
    assert told.exit_code == 1, told.output
    assert json.loads((tmp_path / "now" / "report.json").read_text())["since_baseline"]["rows"]
    assert "Since the baseline" in (tmp_path / "now" / "report.html").read_text()
