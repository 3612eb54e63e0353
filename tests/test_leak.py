"""The point of it all: an undefended network gives its picture away, and noise that stops an attack is not yet low."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.metrics.baselines import ATTAINABLE, BASELINE_WORDS
from fedseal.report.charts import baseline_name
from fedseal.report.write import write_reports

STRONG = "gaussian:sigma=1"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An audit of LeNet on faces, one image at a time, undefended and under strong noise."""
    scenario = Scenario(
        data="faces",
        model="lenet:init=wide-uniform",
        attacks=("idlg:iterations=220",),
        defences=("none", STRONG),
        targets=4,
    )
    directory = tmp_path_factory.mktemp("leak")
    done = run_audit([scenario], directory)
    write_reports(done, directory)
    return done


def test_undefended_it_leaks_and_the_verdict_says_so(run: Run):
    row = run.verdict().rows[0]
    assert row.defence == "none"
    assert row.worst is not None
    assert row.worst.psnr is not None
    assert row.worst.psnr.mean >= 20
    assert row.worst.excess is not None
    assert row.worst.excess.low is not None
    assert row.worst.excess.low > 0
    assert row.level is RiskLevel.VERY_HIGH
    assert "Undefended, this federation's risk is very high" in run.verdict().sentence()
    assert all(record.label_accuracy == 1 for record in row.worst.records)


def test_noise_that_stops_the_attack_is_low_only_if_the_update_was_read(run: Run):
    row = run.verdict().rows[1]
    assert row.defence == STRONG
    assert {cell.aware for cell in row.cells} == {False, True}
    assert "found" not in dict(row.worst.leaks if row.worst else ())
    if row.ideal is None and row.proven is None:
        assert row.level is not RiskLevel.LOW
        assert "the risk is low" not in run.verdict().sentence()
    if row.level is RiskLevel.LOW:
        assert row.worst is not None
        assert row.worst.decided in ("ideal", "proven")


def test_the_chance_baselines_are_in_both_reports(run: Run):
    report = json.loads((run.directory / "report.json").read_text())
    page = Path(run.directory / "report.html").read_text()
    assert report["verdict"]["level"] == "very-high"
    for cell in report["cells"]:
        assert cell["baseline"] in ATTAINABLE
        assert cell["baseline_psnr"] > 5
        assert f"{cell['baseline_psnr']:.1f}" in page
    for record in report["records"]:
        assert set(record["baselines"]) == set(BASELINE_WORDS)
    for name in BASELINE_WORDS:
        assert baseline_name(name) in page
