"""The point of it all: an undefended small network gives its picture away, strong noise keeps it, and both are said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.metrics.baselines import BASELINE_WORDS
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
        targets=2,
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


def test_strong_noise_protects_and_the_verdict_says_so(run: Run):
    row = run.verdict().rows[1]
    assert row.defence == STRONG
    assert {cell.aware for cell in row.cells} == {False, True}
    assert row.level is RiskLevel.LOW
    assert f"The defence audited is {STRONG}: with it the risk is low" in run.verdict().sentence()


def test_the_chance_baselines_are_in_both_reports(run: Run):
    report = json.loads((run.directory / "report.json").read_text())
    page = Path(run.directory / "report.html").read_text()
    assert report["verdict"]["level"] == "very-high"
    for cell in report["cells"]:
        assert cell["baseline"] in BASELINE_WORDS
        assert cell["baseline_psnr"] > 5
        assert f"{cell['baseline_psnr']:.1f}" in page
    for record in report["records"]:
        assert set(record["baselines"]) == set(BASELINE_WORDS)
    for name in BASELINE_WORDS:
        assert baseline_name(name) in page
