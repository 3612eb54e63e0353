"""`kill -9` at any moment: the same command resumes, runs nothing twice, and ends with the same numbers."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import load_scenario
from fedseal.report.write import write_reports

SCENARIO = """
data: faces:size=8
defences: [none, topk]
attacks: ["ig:iterations=100", "ig:iterations=101"]
targets: 1
readings: 0
"""
TRIALS = 6
PROTOCOL = """
data: faces:size=8
attacks: ig:iterations=400
readings: 0
targets: 4
each:
  client.batch_size: [1, 2, 4]
  stage: {first round: {stage: null}, after 3 rounds: {stage: {round: 3, clients: 4}}}
"""
Moments = list[tuple[int | None, float]]
"""When to kill: after the start or the n-th trial of an attempt, then a time drawn up to a limit."""


def start(directory: Path, workers: int, command: str = "audit", scenario: str = SCENARIO) -> subprocess.Popen[str]:
    (directory / "scenario.yaml").write_text(scenario)
    words = [command, "scenario.yaml", "--out", "run", "--workers", str(workers)]
    return subprocess.Popen(
        [sys.executable, "-m", "fedseal", *words],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_trials(process: subprocess.Popen[str], number: int) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if re.match(r"\d+/\d+ trials", line):
            number -= 1
            if number == 0:
                return
    raise AssertionError("the audit ended before it could be killed")


def processes_of(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def stored(directory: Path) -> dict[str, tuple[int, str]]:
    """Return row and record, the time it took included, of every trial in the store."""
    path = directory / "run" / "store.sqlite"
    if not path.exists():
        return {}
    database = sqlite3.connect(path)
    try:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'trials'").fetchone():
            return {}
        return {key: (row, text) for row, key, text in database.execute("SELECT rowid, key, record FROM trials")}
    finally:
        database.close()


def artefacts(directory: Path, keys: set[str]) -> dict[str, tuple[int, int]]:
    """Return inode and time of the artefacts of `keys`."""
    files = (directory / "run" / "artefacts").rglob("*.safetensors")
    return {path.stem: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files if path.stem in keys}


def numbers(directory: Path) -> list[dict[str, Any]]:
    """Return the records of the JSON report without the times."""
    report = json.loads((directory / "run" / "report.json").read_text())
    assert report["complete"]
    for record in report["records"]:
        del record["seconds"], record["cost"]["seconds"]
    records: list[dict[str, Any]] = report["records"]
    return records


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The numbers of an audit that nobody disturbs."""
    directory = tmp_path_factory.mktemp("undisturbed")
    (directory / "scenario.yaml").write_text(SCENARIO)
    run = run_audit([load_scenario(directory / "scenario.yaml")], directory / "run")
    write_reports(run, directory / "run")
    found = numbers(directory)
    assert len(found) == TRIALS
    return found


@pytest.mark.parametrize(
    ("workers", "moments"),
    [
        pytest.param(1, [(2, 0.1)], id="once", marks=pytest.mark.slow),
        pytest.param(1, [(None, 2.0), (1, 0.2), (2, 0.2)], id="thrice", marks=pytest.mark.slow),
        pytest.param(2, [(2, 0.1)], id="workers", marks=pytest.mark.slow),
    ],
)
def test_a_killed_audit_resumes(tmp_path: Path, undisturbed: list[dict[str, Any]], workers: int, moments: Moments):
    draw = random.Random(workers)
    before: dict[str, tuple[int, str]] = {}
    files: dict[str, tuple[int, int]] = {}
    for trials, limit in moments:
        process = start(tmp_path, workers)
        if trials is not None:
            wait_for_trials(process, trials)
        time.sleep(draw.uniform(0, limit))
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert wait_until(lambda session=process.pid: not processes_of(session), 10), "workers outlive their parent"
        process.communicate()
        after = stored(tmp_path)
        assert before.items() <= after.items()
        assert len(after) - len(before) >= (trials or 0)
        assert files.items() <= artefacts(tmp_path, set(after)).items()
        before, files = after, artefacts(tmp_path, set(after))
    assert 2 <= len(before) < TRIALS
    process = start(tmp_path, workers)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert f"{len(before)} of {TRIALS} trials are in the store already" in errors
    assert "Undefended" in output
    assert before.items() <= stored(tmp_path).items()
    assert files.items() <= artefacts(tmp_path, set(before)).items()
    assert numbers(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_killed_protocol_resumes_to_the_answers_of_one_undisturbed(tmp_path: Path):
    """Killed in the training before the attack, then between trials: table, sentences and numbers are the same."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
    process = start(whole, 1, "protocol", PROTOCOL)
    expected, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    held = 0
    for trials in (0, 1):
        process = start(killed, 1, "protocol", PROTOCOL)
        if trials:
            wait_for_trials(process, trials)
        else:
            time.sleep(6)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert len(stored(killed)) >= held
        held = len(stored(killed))
    assert held > 0
    process = start(killed, 1, "protocol", PROTOCOL)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "trials are in the store already" in errors
    assert output == expected
    for name in ("protocol.csv", "protocol.md"):
        assert (killed / "run" / name).read_text() == (whole / "run" / name).read_text()


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path: Path):
    process = start(tmp_path, 2)
    wait_for_trials(process, 1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted; run the same command again to resume."
    assert "Traceback" not in errors
    assert wait_until(lambda: not processes_of(process.pid), 5)
    assert stored(tmp_path)
