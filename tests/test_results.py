"""Result pages name one commit, and what their commands touch is what that commit held."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
OTHERS = {"README", "auto", "claims", "modern", "priors", "tables", "text"}
"""The index, pages that benchmarks write, the ledger of claims, and those that wait for the rest of their runs."""
MADE = re.compile(r"Made from commit `([0-9a-f]{40})` \(`src/fedseal`: tree `([0-9a-f]{40})`\)")


@pytest.fixture(scope="module")
def make(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(RESULTS / "make.py")


def _git(*arguments: str) -> str | None:
    """Return what git answers; None where it cannot, as in a shallow clone or without a repository."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _named(name: str) -> tuple[str, str]:
    found = MADE.search((RESULTS / f"{name}.md").read_text(encoding="utf-8"))
    assert found is not None, f"docs/results/{name}.md names no commit"
    return found[1], found[2]


def test_every_page_is_made_by_the_script(make: ModuleType):
    assert {path.stem for path in RESULTS.glob("*.md")} - OTHERS == set(make.pages())


def test_all_pages_are_of_one_code_state(make: ModuleType):
    assert len({_named(name) for name in make.pages()}) <= 1


def test_what_a_pages_commands_touch_is_what_its_commit_held(make: ModuleType):
    for name, page in make.pages().items():
        commit, sources = _named(name)
        text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        for scenario in page.scenarios:
            assert make.command(scenario) in text
        if _git("cat-file", "-e", f"{commit}^{{commit}}") is None:
            continue  # a shallow clone does not have it
        assert _git("rev-parse", f"{commit}:src/fedseal") == sources, name
        for scenario in page.scenarios:
            path = f"docs/results/{scenario}"
            assert _git("rev-parse", f"{commit}:{path}") == _git("hash-object", path), f"{path} changed since {commit}"


def test_a_changed_package_or_scenario_is_not_a_commit_to_name(make: ModuleType, tmp_path: Path, monkeypatch):
    """The script asks git for what differs, of the package and of the page's own scenarios."""
    for command in (["init", "-q"], ["config", "user.email", "a@b"], ["config", "user.name", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    package, scenarios = tmp_path / "src/fedseal", tmp_path / "docs/results"
    for folder in (package, scenarios):
        folder.mkdir(parents=True)
    (package / "one.py").write_text("x = 1\n")
    (scenarios / "a.yaml").write_text("name: a\n")
    (scenarios / "b.yaml").write_text("name: b\n")
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    subprocess.run(["git", "commit", "-qm", "all"], cwd=tmp_path, check=True)
    monkeypatch.setattr(make, "ROOT", tmp_path)
    page = make.Page("page", "A page", ("a.yaml",))
    assert make.changed(page) == []
    (scenarios / "b.yaml").write_text("name: another\n")  # not this page's
    assert make.changed(page) == []
    (package / "one.py").write_text("x = 2\n")
    assert len(make.changed(page)) == 1
