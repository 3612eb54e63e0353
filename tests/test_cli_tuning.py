"""`fedseal tune-attack`: from a scenario to settings `auto` will find."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedseal.cli import app


def test_tuning_by_the_command_prints_what_was_found_for_every_defence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("optuna")
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "data: digits\nmodel: mlp:width=16\ndefences: [none, 'topk:ratio=0.5']\nattacker: {public_images: 24}\n"
    )
    command = ["tune-attack", str(scenario), "--attack", "ig:signed=true", "--trials", "2", "--iterations", "3"]
    done = CliRunner().invoke(app, [*command, "--shadows", "2"])
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if line.startswith(("none: ig:", "topk:ratio=0.5: ig:"))]
    assert len(lines) == 2
    assert all("2 settings tried" in line for line in lines)
