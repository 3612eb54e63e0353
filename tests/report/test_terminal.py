"""The terminal summary: 80 columns, levels in words, nothing interpreted as markup."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console

from fedseal.audit.run import Run
from fedseal.report.terminal import render_terminal


def show(run: Run) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(render_terminal(run))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_it_fits_80_columns_and_says_what_matters(run: Run) -> None:
    text = show(run)
    assert all(len(line) <= 80 for line in text.splitlines())
    flat = " ".join(text.split())
    assert flat.startswith(run.verdict().sentence()[:40])
    for expected in (
        "naive 11.8 ±",
        "aware 17.2 ±",
        "very high",
        "high",
        "not applicable",
        "1 failed",
    ):
        assert expected in flat, expected
    assert "Best attainable guess: class mean" in flat
    assert "picked out of 70:" in flat
    assert "not shown" in flat


def test_many_attacks_take_several_tables(make_run: Callable[..., Run]) -> None:
    attacks = ("ig", "fedleak", "gradinversion", "bayes", "rog", "dlg", "fedleak-artifact:layers=first-half")
    text = show(make_run(attacks=attacks, targets=1))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.count("Defence") == 3


def test_incomplete_several_and_empty(run: Run, make_run: Callable[..., Run]) -> None:
    text = show(make_run(scenarios=("first", "second"), targets=1, missing=1))
    assert "Not complete: 23 of 24 planned trials have ended." in text
    assert "Scenario second" in text
    assert "Nothing could be judged" in show(replace(run, records=()))


def test_markup_in_names_is_text(make_run: Callable[..., Run]) -> None:
    assert "[red]topk[/]" in show(make_run(defences=("none", "[red]topk[/]"), targets=1))


def test_hostile_text_prints(hostile: Run) -> None:
    assert "\x1b" not in show(hostile)
