"""The advisor end to end on a small federation: it resumes, says what privacy costs, calls nothing safe that is not."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedseal
from fedseal.advice.outcome import Advice, open_advice
from fedseal.advice.scenario import AdviceScenario
from fedseal.audit.levels import State
from fedseal.audit.runner import run_audit
from fedseal.cli import main
from fedseal.report.pieces import piece_of

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "data": "digits:size=8",
    "model": "mlp:width=32",
    "clients": 8,
    "federation": {
        "algorithm": "fedsgd",
        "rounds": 20,
        "batch_size": 2,
        "learning_rate": 0.3,
        "server_momentum": 0.9,
        "evaluate_every": 5,
    },
    "attacker": {"labels": "true"},
    "defences": ["gaussian"],
    "attacks": ["ig:iterations=5"],
    "targets": 4,
    "readings": 1,
    "seeds": 1,
    "trials": 3,
    "front": 2,
}
GENEROUS = {"max_accuracy_loss": "95%", "max_upload": "any", "max_time": "any"}


def ask(directory: Path, **values: Any) -> Advice:
    return fedseal.advise(SMALL | values, out=directory)


def test_where_only_strong_noise_is_safe_it_says_what_that_costs(tmp_path: Path) -> None:
    advice = ask(tmp_path, defences=["gaussian:sigma=2/4"], trials=2)
    assert advice.recommended is None
    safe = [advice.candidate(name) for name in advice.nearest if advice.candidate(name).safe()]
    assert safe, advice.paragraph
    trained = safe[0].trained
    assert trained is not None
    assert trained.accuracy is not None
    assert not trained.stopped  # to its end, so that the cost is the real one
    assert f"{trained.accuracy.mean:.1f} %" in advice.paragraph


def test_a_recommendation_survives_a_fresh_audit_and_other_limits_use_what_is_there(tmp_path: Path) -> None:
    advice = ask(tmp_path, limits=GENEROUS)
    assert advice.recommended is not None, advice.paragraph
    assert advice.recommended.startswith("gaussian")
    assert advice.recommended in piece_of(tmp_path, "flower")
    assert "low" in piece_of(tmp_path, "ci").splitlines()[0]
    audit = advice.scenario.attacked((advice.recommended,)).model_copy(update={"seed": 77})
    rows = run_audit([audit], tmp_path / "fresh").verdict().rows
    assert next(row for row in rows if row.defence == advice.recommended).state is State.LOW
    kept = readings_in(tmp_path)
    hurried = ask(tmp_path, limits=GENEROUS | {"max_time": "0.001x"})
    assert hurried.recommended is None
    assert any(hurried.candidate(name).safe() for name in hurried.nearest)
    assert {one.defence for one in hurried.candidates} == {one.defence for one in advice.candidates}
    after = readings_in(tmp_path)
    assert all(after[key] == value for key, value in kept.items())


def test_where_nothing_is_safe_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice = ask(tmp_path, defences=["topk:ratio=0.5/0.8"], trials=2)
    assert advice.recommended is None
    assert not any(one.safe() for one in advice.candidates)
    assert "shown to be low" in advice.paragraph
    sys.argv = ["fedseal", "apply", str(tmp_path), "--to", "flower"]
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "recommends no defence" in capsys.readouterr().err


def readings_in(place: Path) -> dict[str, str]:
    """Return the readings in a store as they are, by their key."""
    with sqlite3.connect(place / "audit" / "store.sqlite") as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        table = next(name for name in tables if "reading" in name)
        return {str(row[0]): str(row) for row in database.execute(f"select * from {table}")}


def test_killed_at_any_time_it_goes_on_and_repeats_no_reading(tmp_path: Path) -> None:
    scenario = tmp_path / "federation.yaml"
    scenario.write_text(AdviceScenario.model_validate(SMALL).model_dump_json())  # JSON is YAML
    words = [sys.executable, "-m", "fedseal", "advise", str(scenario), "--out", str(tmp_path / "run"), "--workers", "1"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if re.match("ideal reading of gaussian", line):
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = readings_in(tmp_path / "run")
    assert kept
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    after = readings_in(tmp_path / "run")
    assert all(after[key] == value for key, value in kept.items())  # times and all: none was taken again
    assert open_advice(tmp_path / "run").paragraph in done.stdout.replace("\n", " ")
