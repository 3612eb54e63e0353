"""The overview: every defence against every attack in one table, with what was refused or never run said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedseal.audit.run import Run
from fedseal.audit.verdict import judge
from fedseal.report.markdown import escaped, render_markdown
from fedseal.report.overview import render_overview


def _lines(run: Run) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in render_overview(run).splitlines()]


def test_scenarios_with_the_same_defences_share_a_table(make_run: Callable[..., Run]) -> None:
    run = make_run(scenarios=("first", "second"))
    defences, attacks = run.scenarios[0].defences, run.scenarios[0].attacks
    head, _, *rows = _lines(run)
    named = [f"{scenario}: {attack}" for scenario in ("first", "second") for attack in attacks]
    assert head == ["defence", *named]
    assert [row[0] for row in rows] == list(defences)
    expected = [
        f"{cell.psnr.mean:.1f} dB, {cell.ssim.mean:.2f}"
        for cell in judge(run.records).cells
        if (cell.scenario, cell.defence, cell.attack) == ("second", defences[1], attacks[0])
        if cell.psnr is not None and cell.ssim is not None
    ]
    assert len(expected) == 2
    assert rows[1][3] == " / ".join(expected)
    assert rows[1][2] == "not applicable"


def test_what_is_missing_and_what_the_model_was_fed_is_said(make_run: Callable[..., Run]) -> None:
    run = make_run()
    _, second, third = run.scenarios[0].defences
    kept = [record for record in run.records if record.defence != third]
    fed = [
        record.model_copy(update={"psnr_fed": (30.0, 40.0)}) if record.defence == second else record for record in kept
    ]
    _, _, *rows = _lines(replace(run, records=tuple(fed)))
    assert rows[2][1:] == ["not run", "not run"]
    assert rows[1][1].count("(fed: 35.0 dB)") == 2
    assert "fed" not in rows[0][1]


def test_a_scenario_without_defences_has_no_overview(make_run: Callable[..., Run]) -> None:
    assert render_overview(make_run(defences=("none",))) == ""


def test_names_break_out_of_no_markdown_table(hostile: Run) -> None:
    records = tuple(r.model_copy(update={"defence": f"{r.defence}|x\n| y |"}) for r in hostile.records)
    text = render_markdown(replace(hostile, records=records))
    assert "<script" not in text
    assert escaped("a|b <i>\nc") == "a&#124;b &lt;i&gt; c"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 3
    assert {row.count("|") for row in rows} == {rows[0].count("|")}
