"""Result pages name one commit, and what their commands touch is what that commit held."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from fedseal.metrics.intervals import Interval

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
OTHERS = {"README", "claims", "priors", "text"}
"""The index, the ledger of claims, and pages that wait for the rest of their runs."""
WRITTEN = {
    "auto": ("bench/auto.py", "bench/autobench/networks.py"),
    "refiner-ball": ("bench/refiner_ball.py",),
}
"""Pages that benchmarks write, and what decides their figures beside the package."""
MADE = re.compile(r"Made from commit `([0-9a-f]{40})` \(`src/fedseal`: tree `([0-9a-f]{40})`\)")


@pytest.fixture(scope="module")
def provenance(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(ROOT / "bench" / "provenance.py")


@pytest.fixture(scope="module")
def make(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(RESULTS / "make.py")


@pytest.fixture(scope="module")
def compact(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(RESULTS / "compact.py")


def _git(*arguments: str) -> str | None:
    """Return what git answers; None where it cannot, as in a shallow clone or without a repository."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _named(name: str) -> tuple[str, str]:
    """Return the one commit a page is of, and the tree of its sources."""
    found = MADE.findall((RESULTS / f"{name}.md").read_text(encoding="utf-8"))
    assert len(found) == 1, f"docs/results/{name}.md names {len(found)} commits"
    return found[0]


def _touched(make: ModuleType) -> dict[str, tuple[str, ...]]:
    """Return the pages by name, and the files beside the package that decide their figures."""
    ours = {name: tuple(f"docs/results/{one}" for one in page.scenarios) for name, page in make.pages().items()}
    return {**ours, **WRITTEN}


def test_every_page_is_made_by_a_script(make: ModuleType):
    assert {path.stem for path in RESULTS.glob("*.md")} - OTHERS == set(_touched(make))


def test_what_a_pages_commands_touch_is_what_its_commit_held(make: ModuleType):
    for name, paths in _touched(make).items():
        commit, sources = _named(name)
        if _git("cat-file", "-e", f"{commit}^{{commit}}") is None:
            continue  # a shallow clone does not have it
        assert _git("rev-parse", f"{commit}:src/fedseal") == sources, name
        for path in paths:
            assert _git("rev-parse", f"{commit}:{path}") == _git("hash-object", path), f"{path} changed since {commit}"


def test_a_page_prints_the_commands_it_was_made_by(make: ModuleType):
    for name, page in make.pages().items():
        text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        assert all(make.command(scenario) in text for scenario in page.scenarios)


def _models(scenario: dict[str, object]) -> list[object]:
    grid = scenario.pop("grid", {})
    assert isinstance(grid, dict)
    return list(grid.get("model", [])) or [scenario.pop("model")]


@pytest.mark.parametrize("page", ["seed-claims", "active"])
def test_what_the_papers_claim_is_asked_on_both_lenets(make: ModuleType, page: str):
    """C4: AdaDefense's LeNet has sigmoids, others' have ReLU, and defences differ on them; 0.1 had one of the two."""
    asked: dict[str, set[object]] = {}
    for name in make.pages()[page].scenarios:
        scenario = yaml.safe_load((RESULTS / name).read_text(encoding="utf-8"))
        del scenario["name"]
        models = _models(scenario)
        asked.setdefault(str(sorted(scenario.items())), set()).update(models)
    assert asked
    for scenario_but_model, models in asked.items():
        assert models == {"lenet-relu", "lenet-sigmoid"}, scenario_but_model


def test_a_changed_package_or_file_is_not_a_commit_to_name(provenance: ModuleType, tmp_path: Path):
    """The scripts ask git for what differs, of the package and of the files that decide a page's figures."""
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
    paths = ["docs/results/a.yaml"]
    assert provenance.changed(paths, tmp_path) == []
    (scenarios / "b.yaml").write_text("name: another\n")  # not this page's
    assert provenance.changed(paths, tmp_path) == []
    (scenarios / "a.yaml").write_text("name: another\n")
    assert len(provenance.changed(paths, tmp_path)) == 1
    (package / "one.py").write_text("x = 2\n")
    assert len(provenance.changed(paths, tmp_path)) == 2


def test_rows_of_several_states_make_no_page(provenance: ModuleType, monkeypatch):
    monkeypatch.setattr(provenance, "changed", lambda paths: [])
    monkeypatch.setattr(provenance, "state", lambda: "now")
    provenance.of_one_state(["now", "now"], ())
    with pytest.raises(SystemExit, match="1 other states"):
        provenance.of_one_state(["now", "before"], ())


def test_a_mean_stands_with_its_interval_and_with_what_it_is_the_mean_of(compact: ModuleType):
    """Below four seeds there is no interval, and of four it may be far wider than they lie apart."""
    four = compact._of_seeds(Interval(0.5, 0.4, 0.6, 4), [40, 50, 50, 60], 100)
    assert four == "50.0 [40.0, 60.0] (40.0, 50.0, 50.0, 60.0)"
    assert compact._of_seeds(Interval(0.5, None, None, 2), [45, 55], 100) == "50.0 (45.0, 55.0)"


def test_answers_to_a_question_are_a_row_for_each_defence(compact: ModuleType):
    rates = [{"false_alarms": 0.01, "found": 0.3, "low": 0.2, "high": 0.4}]
    asked = {"auc": 0.7, "auc_low": 0.6, "auc_high": 0.8, "rates": rates}
    answers = [{"defence": "none", "score": "loss", **asked}, {"defence": "none", "score": "alignment", **asked}]
    answers.append({"defence": "dgp", "score": "loss", **asked, "rates": []})
    assert compact.render_outcomes(answers).splitlines() == [
        "| defence | loss | alignment |",
        "|---|---|---|",
        "| `none` | 0.70 [0.60, 0.80], 30 % [20, 40] | 0.70 [0.60, 0.80], 30 % [20, 40] |",
        "| `dgp` | 0.70 [0.60, 0.80] |  |",
    ]
