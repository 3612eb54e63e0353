"""`fedseal prepare` on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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


def test_a_prior_is_trained_measured_drawn_and_found_again(scenario: Path):
    out = scenario.parent / "mine.safetensors"
    asked = ["prior", "--data", "faces:size=8", "--kind", "patch", "--steps", "2", "--images", "24", "--out", str(out)]
    first = run(*asked)
    assert "ready: patch prior from 24 images (24 images of faces:size=8), 2 steps" in first
    assert "dB on 4 held-out images; samples differ from them by" in first
    assert out.is_file()
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert f"use it as ig:prior={out}" in first
    assert "found: patch prior" in run(*asked)
    assert "patch prior from 24 images" in run("--list")


def test_a_priors_file_does_not_say_where_its_images_lay(scenario: Path):
    kept = scenario.parent / "mine.npz"
    images = np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)
    np.savez(kept, images=images, labels=np.arange(24))
    out = scenario.parent / "prior.safetensors"
    run("prior", "--data", f"npz:path={kept}", "--kind", "patch", "--steps", "2", "--out", str(out))
    content = out.read_bytes()
    assert b"npz:path=mine.npz" in content
    assert str(scenario.parent).encode() not in content


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prior"], "--data NAME"),
        (["prior", "--data", "faces:size=8", "--kind", "cat"], "no kind of prior called 'cat'"),
        (["prior", "--data", "faces:size=8", "--data", "faces:size=16", "--kind", "patch"], "1x8x8 and 1x16x16"),
        (["{}", "--data", "faces"], "fedseal prepare prior"),
    ],
)
def test_a_prior_of_nothing_is_refused_in_words(scenario: Path, arguments: list[str], words: str):
    wrong = CliRunner().invoke(app, ["prepare", *(text.format(scenario) for text in arguments)])
    assert words in str(wrong.exception)
