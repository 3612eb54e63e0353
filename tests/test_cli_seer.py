"""`fedseal train-seer` on the command line."""

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
attacks: ["seer:steps=2"]
defences: [none]
targets: 1
"""


def test_attackers_are_trained_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "seer.yaml"
    path.write_text(SCENARIO)
    first = CliRunner().invoke(app, ["train-seer", str(path)])
    assert first.exit_code == 0, first.output
    assert "seer:steps=2: 2 steps in" in first.output
    assert len(list((tmp_path / "cache" / "seer").glob("*.safetensors"))) == 1
    other = CliRunner().invoke(app, ["train-seer", str(path), "--attack", "seer:steps=2,property=dark"])
    assert other.exit_code == 0, other.output
    assert len(list((tmp_path / "cache" / "seer").glob("*.safetensors"))) == 2
    wrong = CliRunner().invoke(app, ["train-seer", str(path), "--attack", "ig"])
    assert isinstance(wrong.exception, UsageError)
