"""`fedseal prepare` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedseal.cli import app
from fedseal.core.errors import UsageError

SCENARIO = """
name: seer
data: digits:size=8
model: convbn:width=8
client: {batch_size: 8, bn_mode: train-nostats}
attacker: {public_data: true}
attacks: ["seer:steps=2", ig]
defences: [none]
targets: 1
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "seer.yaml"
    path.write_text(SCENARIO)
    return path


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["prepare", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_what_a_scenario_needs_is_trained_found_listed_and_pruned(scenario: Path):
    assert "nothing was prepared yet" in run("--list")
    assert "ready: seer bright" in run(str(scenario))
    assert "found: seer bright" in run(str(scenario))
    assert "ready: seer dark" in run(str(scenario), "--attack", "seer:steps=2,property=dark")
    listed = run("--list")
    assert "dark" in listed
    assert listed.count("ready") == 2
    assert "0 files" in run("--prune")
    former = scenario.parent / "cache" / "lids" / "groups-0.safetensors"
    former.parent.mkdir()
    former.write_bytes(b"private")
    assert "1 files" in run("--prune")
    assert not former.exists()


@pytest.mark.parametrize("arguments", [[], ["--list", "--prune"], ["{}", "--list"]])
def test_one_thing_is_asked_for_at_a_time(scenario: Path, arguments: list[str]):
    wrong = CliRunner().invoke(app, ["prepare", *(text.format(scenario) for text in arguments)])
    assert isinstance(wrong.exception, UsageError)
    assert "one of the three" in str(wrong.exception)


def test_a_scenario_without_anything_to_train_is_told(scenario: Path):
    wrong = CliRunner().invoke(app, ["prepare", str(scenario), "--attack", "ig"])
    assert isinstance(wrong.exception, UsageError)
    assert "nothing in this scenario" in str(wrong.exception)
