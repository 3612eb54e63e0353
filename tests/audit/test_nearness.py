"""A defence that hardly changes the update is named wherever its readings stand, and no other is."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import fedseal
from fedseal.audit.nearness import acts_on_uploads, change, row_findings, turn
from fedseal.audit.run import Run
from fedseal.report.html import render_html
from fedseal.report.machine import render_json
from fedseal.report.terminal import render_terminal
from fedseal.store.records import TrialRecord

DEFENCES = (
    "none",
    "refiner",
    "gaussian:sigma=1e-6,clip=inf",
    "gaussian:sigma=1e-6",
    "gaussian:sigma=0.01",
    "topk:ratio=0.9",
    "adadefense",
    "secagg:clients=2",
    "selective-encryption:ratio=0.5",
    "precode",
)


def _audited(model: str, out: Path) -> Run:
    return fedseal.audit(
        data="faces:size=16",
        model=model,
        attacks="ig:iterations=1",
        defences=DEFENCES,
        attacker={"aware": "naive"},
        targets=1,
        readings=0,
        out=out,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _audited("lenet-sigmoid", tmp_path_factory.mktemp("sigmoid"))


def _said(run: Run) -> dict[str, str]:
    return {row.defence: found.text for row in run.verdict().rows for found in row_findings(row)}


def test_who_sends_nearly_the_gradient_is_named_with_how_near(run: Run):
    said = _said(run)
    assert said.keys() == {"refiner", "gaussian:sigma=1e-6,clip=inf", "gaussian:sigma=1e-6"}
    (refined,) = (change(record) for record in run.records if record.defence == "refiner")
    assert refined is not None
    assert refined < 0.02
    assert said["refiner"] == (
        f"refiner changes the update by {100 * refined:.2g} % of its norm only: what is sent is nearly the gradient "
        "itself."
    )


def test_a_clipped_gradient_is_still_the_gradient(run: Run):
    (record,) = (record for record in run.records if record.defence == "gaussian:sigma=1e-6")
    far, turned = change(record), turn(record)
    assert far is not None
    assert turned is not None
    assert far > 0.5  # clipped from a norm far above 1
    assert turned < 1e-3
    assert "changes the length of the update and little else" in _said(run)["gaussian:sigma=1e-6"]


def test_a_refiner_that_refines_is_not_blamed(tmp_path: Path):
    """On ReLU it goes 10 to 20 % of the norm away, and only noise of 1e-6 is named."""
    run = _audited("lenet-relu", tmp_path)
    moved = [change(record) for record in run.records if record.defence == "refiner"]
    assert all(value is not None and 0.05 < value < 0.5 for value in moved)
    assert _said(run).keys() == {"gaussian:sigma=1e-6,clip=inf", "gaussian:sigma=1e-6"}


def test_terminal_page_and_json_say_it_beside_the_defence(run: Run):
    shown = io.StringIO()
    Console(file=shown, width=80).print(render_terminal(run))
    words = " ".join(shown.getvalue().split())
    page = " ".join(render_html(run).replace("<wbr>", "").split())
    rows = {row["defence"]: row["findings"] for row in json.loads(render_json(run))["verdict"]["rows"]}
    for defence, text in _said(run).items():
        assert text in words
        assert page.count(text) >= 3  # on page one, beside its row, and under the table
        assert [one["text"] for one in rows[defence]] == [text]
    assert rows["none"] == rows["topk:ratio=0.9"] == rows["adadefense"] == []


def test_records_of_earlier_versions_say_what_they_hold(run: Run):
    def old(record: TrialRecord) -> TrialRecord:
        kept = {name: value for name, value in record.cost.items() if name != "gradient_cosine"}
        return record.model_copy(update={"cost": kept})

    earlier = replace(run, records=tuple(old(record) for record in run.records))
    assert _said(earlier).keys() == {"refiner", "gaussian:sigma=1e-6,clip=inf"}
    empty = replace(run, records=tuple(record.model_copy(update={"cost": {}}) for record in run.records))
    assert _said(empty) == {}


@pytest.mark.parametrize("spec", ["none", "precode", "secagg:clients=2", "selective-encryption", "no-such-defence"])
def test_what_acts_elsewhere_is_not_judged_by_its_uploads(spec: str):
    assert not acts_on_uploads(spec)


@pytest.mark.parametrize("spec", ["topk:ratio=0", "gaussian+topk", "secagg:clients=1", "lids", "adadefense"])
def test_what_acts_on_uploads_or_data_is(spec: str):
    assert acts_on_uploads(spec)
