"""`fedseal prepare model`: a file of weights that a scenario can name, trained once, and said to have learnt or not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedseal import cli
from fedseal.core.errors import UsageError
from fedseal.models.registry import build_model
from fedseal.training.weights import recipe, train_weights


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedseal", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_the_weights_are_those_that_were_measured_and_load_into_the_model(tmp_path: Path):
    scenario = recipe("digits:size=8", "mlp:width=16", images=400, epochs=3, learning_rate=0.1)
    made = train_weights(scenario, tmp_path / "new" / "mlp.safetensors")
    assert made.learnt
    assert made.accuracy > made.chance + 20
    model = build_model(made.spec, input_shape=(1, 8, 8), num_classes=10, seed=5)
    assert all(torch.equal(model.state_dict()[name], held) for name, held in load_file(made.path).items())
    again = train_weights(scenario, tmp_path / "again.safetensors")
    assert again.sha256 == made.sha256


def test_a_model_that_learnt_nothing_says_so(tmp_path: Path):
    made = train_weights(recipe("digits:size=8", "mlp:width=4", images=50, epochs=1), tmp_path / "m.safetensors")
    assert not made.learnt
    assert "learnt nothing" in made.sentence


def test_the_command_writes_a_file_and_names_its_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    out = tmp_path / "w.safetensors"
    command = ["prepare", "model", "--data", "digits:size=8", "--model", "mlp:width=16", "--images", "100"]
    assert run(monkeypatch, *command, "--epochs", "1", "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert f"mlp:width=16,checkpoint={out}" in printed
    assert "client.normalise: true" in printed


@pytest.mark.parametrize(
    "wrong",
    [
        ["model"],
        ["model", "--data", "digits"],
        ["model", "--data", "digits", "--data", "faces", "--model", "mlp"],
        ["--model", "mlp"],
        ["model", "--data", "digits", "--model", "mlpp"],
    ],
)
def test_what_names_no_training_is_refused_in_a_line(wrong: list[str], capsys: pytest.CaptureFixture[str], monkeypatch):
    assert run(monkeypatch, "prepare", *wrong) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_rate_that_trains_nothing_is_refused():
    with pytest.raises(UsageError, match="learning rate of 0"):
        recipe("digits", "mlp", learning_rate=0)
