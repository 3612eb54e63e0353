"""What other people's CI takes from us, really run: the action, the hook and the snippets of docs/ci.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedseal

ROOT = Path(__file__).parent.parent
SOURCE = Path(fedseal.__file__).parent.parent
SCENARIO = """
data: faces:size=8
model: mlp:width=16
attacks: [first-layer]
defences: [none, {defence}]
targets: {targets}
readings: 0
"""


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository of somebody else, with fedseal installed."""
    binary = tmp_path / "bin" / "fedseal"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(SOURCE))} exec {sys.executable} -m fedseal "$@"\n')
    binary.chmod(0o755)
    return tmp_path


def call(place: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", **variables}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


def scenario(place: Path, *, defence: str, targets: int) -> str:
    (place / "fedseal.yaml").write_text(SCENARIO.format(defence=defence, targets=targets))
    return "fedseal.yaml"


@pytest.mark.parametrize(
    ("defence", "targets", "control", "code"),
    [
        pytest.param("topk:ratio=0.1", 4, "", 1, marks=pytest.mark.slow),  # a weak defence leaks
        pytest.param("topk:ratio=0.1", 4, "topk:ratio=0.1", 1, marks=pytest.mark.slow),  # the undefended row is judged
        pytest.param("gaussian:sigma=100", 4, "", 0, marks=pytest.mark.slow),  # the control leaks, the defence does not
        pytest.param("gaussian:sigma=100", 2, "", 4, marks=pytest.mark.slow),  # too few to say so
    ],
)
def test_the_action_ends_as_the_audit_does_and_names_its_files(
    place: Path, defence: str, targets: int, control: str, code: int
) -> None:
    name = scenario(place, defence=defence, targets=targets)
    done = call(
        place,
        "bash",
        str(ROOT / ".ci" / "action.sh"),
        FEDSEAL_ACTION_SCENARIO=name,
        FEDSEAL_ACTION_FAIL_ON="high",
        FEDSEAL_ACTION_CONTROL=control,
        FEDSEAL_ACTION_ARGS="--workers 1",
        FEDSEAL_ACTION_OUT="out dir",
        GITHUB_OUTPUT=str(place / "output"),
        GITHUB_STEP_SUMMARY=str(place / "summary.md"),
    )
    assert done.returncode == code, done.stderr
    named = dict(line.split("=", 1) for line in (place / "output").read_text().splitlines())
    assert set(named) == set(load("action.yml")["outputs"])
    assert all((place / path).is_file() for path in named.values())
    assert "data:image" not in (place / named["report"]).read_text()  # redacted unless asked otherwise
    assert defence in (place / "summary.md").read_text()
    if code == 4:
        assert "no pass: too little was tried to judge gaussian:sigma=100 (too few)" in done.stderr


def test_inputs_of_the_action_reach_its_script_as_variables_only() -> None:
    action = load("action.yml")
    step = action["runs"]["steps"][-1]
    script = (ROOT / ".ci" / "action.sh").read_text()
    passed = set(step["env"].values())
    installed = {"version", "python-version"}
    assert passed == {f"${{{{ inputs.{name} }}}}" for name in set(action["inputs"]) - installed}
    assert all(f"{name}" in script for name in step["env"])
    assert "inputs." not in "".join(one.get("run", "") for one in action["runs"]["steps"])
    assert all(one["shell"] == "bash" for one in action["runs"]["steps"] if "run" in one)
    assert all(text["description"] for text in (action["inputs"] | action["outputs"]).values())


@pytest.mark.slow
def test_the_hook_audits_the_scenarios_it_is_given(place: Path) -> None:
    (hook,) = load(".pre-commit-hooks.yaml")
    assert set(hook) >= {"id", "name", "entry", "language"}
    assert re.search(hook["files"], "ci/fedseal.yaml")
    assert not re.search(hook["files"], "ci/other.yaml")
    name = scenario(place, defence="topk:ratio=0.1", targets=4)
    done = call(place, *shlex.split(hook["entry"]), "--workers", "1", name)
    assert done.returncode == 1, done.stderr
    assert (place / ".fedseal" / "report.sarif").is_file()


def test_the_snippets_name_what_exists() -> None:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    workflow, gitlab, hooks = blocks
    (step,) = [one for one in workflow["jobs"]["leakage"]["steps"] if one.get("id") == "fedseal"]
    assert set(step["with"]) <= set(load("action.yml")["inputs"])
    assert gitlab["fedseal"]["artifacts"]["reports"]["junit"] == "fedseal-audit/junit.xml"
    assert hooks["repos"][0]["hooks"][0]["id"] == load(".pre-commit-hooks.yaml")[0]["id"]
