"""A text classifier and LoRA adapters of one in real Flower: defended, recorded, and audited as they were sent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from fedseal.cli import app

from .deployment import QUIET

pytest.importorskip("flwr", reason="Flower is an extra")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where Flower keeps its own; the SuperLink it starts there is stopped afterwards."""
    yield tmp_path / "flwr"
    for process in psutil.process_iter():
        try:
            if process.environ().get("FLWR_HOME") == str(tmp_path / "flwr"):
                process.kill()
        except psutil.Error:
            continue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "model", "defended"),
    [
        ("", "classifier", True),
        ("adapters=true", "adapters", True),
        ("adapters=true defence='none'", "adapters", False),
    ],
)
def test_what_clients_of_text_really_sent_is_audited(
    settings: str,
    model: str,
    defended: bool,
    home: Path,
    examples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if model == "adapters":
        pytest.importorskip("peft", reason="adapters are peft's")
    here = examples / "flower-text"
    path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | QUIET | {"PYTHONPATH": path, "FLWR_HOME": str(home), "PATH": programs}
    call = ["flwr", "run", str(here), "--federation-config", "num-supernodes=2", "--stream", "--run-config"]
    done = subprocess.run(
        [*call, f"{settings} record='{tmp_path / 'sent'}'"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    recorded = sorted((tmp_path / "sent").glob("*.safetensors"))
    assert len(recorded) == 2, done.stdout[-2000:] + done.stderr[-2000:]
    monkeypatch.syspath_prepend(str(here))
    options = ["--model", f"text_app.task:{model}", "--public", "text:notes?length=16", "--fail-on", "very-high"]
    said = CliRunner().invoke(
        app, ["audit-update", "--update", str(tmp_path / "sent"), *options, "--out", str(tmp_path / "report")]
    )
    assert said.exit_code == (0 if defended else 1), said.output
    report = (tmp_path / "report" / "update.md").read_text()
    assert ("No attack read the texts" in report) == defended
    if not defended:
        assert "its words are read exactly" in report
