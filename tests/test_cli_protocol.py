"""The command `protocol` as it is typed."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from fedseal.cli import app

PLAN = """
data: faces:size=8
attacks: ig:iterations=3
readings: 0
targets: 1
each:
  client.batch_size: [1, 2]
  stage: {first round: {stage: null}, after 2 rounds: {stage: {round: 2, clients: 2}}}
"""


def test_a_plan_is_told_without_running_anything(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    result = CliRunner().invoke(app, ["protocol", "plan.yaml", "--plan", "--workers", "1"])
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "client.batch_size: 1, 2" in said
    assert "stage: first round, after 2 rounds" in said
    assert "4 scenarios: about" in said
    assert "trials" in said
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def test_what_failed_is_said_with_its_reason(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN.replace("targets: 1", "targets: 3"))
    result = CliRunner().invoke(app, ["protocol", "plan.yaml", "--out", "run", "--workers", "1"])
    assert result.exit_code == 3
    assert "3 trials failed: round 2 has 2 clients, too few for target 2 of 1." in " ".join(result.stderr.split())
    assert (tmp_path / "run" / "protocol.html").exists()
