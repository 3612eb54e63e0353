"""The audit that runs without arguments: what it is made of, and the three ways its defences end."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from fedseal.audit.levels import State
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario, load_scenario
from fedseal.core.attack import ATTACKS

PRESET = Path(str(files("fedseal.audit") / "presets" / "quick.yaml"))


@pytest.fixture(scope="module")
def quick() -> Scenario:
    return load_scenario(PRESET)


def test_the_default_audit_attacks_by_auto_on_embedded_data(quick: Scenario):
    assert [type(ATTACKS.build(spec)) for spec in quick.attacks] == [type(ATTACKS.build("auto"))]
    assert quick.data.startswith("faces")
    assert "none" in quick.defences
    assert len(quick.defences) in {3, 4}
    assert quick.targets >= 8


@pytest.mark.slow
def test_its_defences_end_in_three_ways_for_three_reasons(
    quick: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    verdict = run_audit([quick], tmp_path / "run").verdict()
    found = {row.defence: row for row in verdict.rows}
    assert {name: row.state for name, row in found.items()} == {
        "none": State.LEAK,
        "topk:ratio=0.9": State.LEAK,
        "censor": State.NOT_SHOWN,
        "gaussian:sigma=2": State.LOW,
    }
    low, missed = found["gaussian:sigma=2"], found["censor"]
    assert low.worst is not None
    assert low.worst.decided == "ideal"
    assert low.ideal is not None
    assert low.ideal.is_low
    assert missed.ideal is not None
    assert (missed.ideal.gain_db or 0) > 2
    assert "low, by the ideal reading" in verdict.sentence()
