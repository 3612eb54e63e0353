"""What a run recommends goes to work as it is printed, and what is not shown to protect is never taken unasked."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.clientapp import ClientApp

import fedseal
from fedseal.audit.run import Run
from fedseal.audit.scenario import Scenario
from fedseal.cli import main
from fedseal.core.errors import FedsealError, UsageError
from fedseal.report.pieces import PIECES, piece

from .test_decision import proven

SOUND = "gaussian:sigma=0.01+topk:ratio=0.95"


@pytest.fixture
def sound(run: Run) -> Run:
    return proven(run, SOUND)


@pytest.mark.parametrize("to", PIECES)
def test_the_recommended_defence_is_named_with_its_standing(sound: Run, to: str) -> None:
    text = piece(sound, to)
    assert text.startswith(f"# {SOUND}: low")
    assert SOUND in text.split("\n", 1)[1]


def test_flowers_piece_runs_as_it_is(sound: Run) -> None:
    names: dict[str, Any] = {}
    exec(compile(piece(sound, "flower"), "piece", "exec"), names)
    assert isinstance(names["app"], ClientApp)
    assert hasattr(names["strategy"], "aggregate_train")


def test_nvflares_piece_makes_its_filters(sound: Run) -> None:
    pytest.importorskip("nvflare", reason="the extra `nvflare` is not installed")

    class Recipe:
        def __init__(self) -> None:
            self.added: list[Any] = []

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda made, tasks: self.added.append((name, type(made).__name__, tasks))

    recipe = Recipe()
    exec(compile(piece(sound, "nvflare"), "piece", "exec"), {"recipe": recipe})
    assert ("add_client_output_filter", "DefenceFilter", ["train"]) in recipe.added
    assert len(recipe.added) == 4


def test_a_builds_scenario_audits_that_defence_beside_the_control(sound: Run) -> None:
    scenario = Scenario.model_validate(yaml.safe_load(piece(sound, "ci")))
    assert scenario.defences == ("none", SOUND)
    assert scenario.model_copy(update={"defences": ()}) == sound.scenarios[0].model_copy(update={"defences": ()})


def test_what_leaks_is_not_taken_unasked_and_says_so_when_asked_for(run: Run) -> None:
    with pytest.raises(UsageError, match="recommends no defence"):
        piece(run, "flower")
    assert "NOT SHOWN TO PROTECT" in piece(run, "flower", "topk:ratio=0.8").splitlines()[0]


def test_what_acts_in_training_says_how(make_run: Callable[..., Run]) -> None:
    run = make_run(defences=("none", "soteria"))
    text = piece(run, "flower", "soteria")
    assert "defend('soteria', inside=True)" in text
    assert "train_round" in text
    ast.parse(text)
    with pytest.raises(UsageError, match="acts inside of training"):
        piece(run, "nvflare", "soteria")


@pytest.mark.parametrize(
    ("to", "defence", "says"),
    [("openfl", None, "nothing is known of 'openfl'"), ("flower", "dgp", "dgp was not audited in this run")],
)
def test_what_cannot_be_written_is_said(run: Run, to: str, defence: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        piece(run, to, defence)


def test_the_command_prints_or_writes_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    fedseal.audit(
        data="faces:size=8", model="mlp:width=8", attacks="first-layer", defences=["none", "topk:ratio=0.1"], out=out
    )
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedseal", "apply", str(out), "--to", "flower", *words])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        return (code if isinstance(code, int) else 0), " ".join("".join(capsys.readouterr()).split())

    assert call()[0] == 2
    assert "defend('topk:ratio=0.1')" in call("--defence", "topk:ratio=0.1")[1]
    assert call("--defence", "topk:ratio=0.1", "-o", "app.py") == (0, "wrote app.py")
    code, text = call("--defence", "topk:ratio=0.1", "-o", "app.py")
    assert (code, "app.py is there already" in text) == (2, True)


def test_a_protocol_between_parties_is_refused(make_run: Callable[..., Run]) -> None:
    run = make_run(defences=("none", "secagg:clients=3"))
    with pytest.raises(FedsealError, match="protocol between several parties"):
        piece(run, "flower", "secagg:clients=3")
