"""A trial is named by all that determines it, and by nothing else."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fedseal
from fedseal.audit.plan import plan_jobs
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.attack import ATTACKS
from fedseal.core.identity import content_of, identity_of
from fedseal.models.registry import MODELS, build_model
from fedseal.store.identity import defence_part, entry_part

PACKAGE = Path(fedseal.__file__).parent


def keys(**values: Any) -> list[str]:
    scenario = Scenario.model_validate({"data": "digits", "model": "mlp:width=4", "targets": 1, **values})
    return [trial.key for job in plan_jobs(build_setup(scenario)) for trial in job.trials]


def test_a_default_written_out_is_the_same_trial_and_another_value_is_not() -> None:
    same = ("ig", "ig:tv=0.0001", "ig:tv=1e-4", "ig:signed=true,lr=0.1")
    assert len({identity_of(attack=entry_part(ATTACKS, spec)) for spec in same}) == 1
    assert keys(attacks=["ig"]) == keys(attacks=["ig:tv=0.0001"]) != keys(attacks=["ig:tv=0.0002"])


def test_an_attack_that_runs_another_holds_its_options_too() -> None:
    fishing = [identity_of(attack=entry_part(ATTACKS, f"fishing:inversion={inner}")) for inner in ("ig", "dlg")]
    assert len(set(fishing)) == 2
    assert "ig" in str(entry_part(ATTACKS, "fishing:inversion=ig")["nested"])


def test_what_an_entry_may_build_is_listed_once_each() -> None:
    """A module with many entries names each of them: one part for every way between them would never end."""
    part = entry_part(MODELS, "resnet20")
    assert {"resnet32", "resnet56"} <= set(part["nested"])
    assert all("nested" not in one for one in part["nested"].values())


def test_models_and_data_count_by_what_they_are(tmp_path: Path) -> None:
    first = keys()
    assert keys(model="mlp:width=4,depth=" + str(_default("mlp", "depth"))) == first
    assert keys(model="mlp:width=5") != first
    assert keys(name="another") == first
    assert keys(data="digits:size=14") != first
    assert keys(seed=1) != first


def _default(model: str, option: str) -> Any:
    from fedseal.models.registry import MODELS

    return MODELS.resolve(model)[option]


def test_a_file_counts_by_content_and_not_by_name(tmp_path: Path) -> None:
    path, copy = tmp_path / "weights.safetensors", tmp_path / "copy.safetensors"
    model = build_model("mlp:width=4", input_shape=(1, 28, 28), num_classes=10, seed=1)
    save_file(model.state_dict(), path)
    shutil.copy(path, copy)
    assert content_of(path) == content_of(copy)
    first = keys(defences=[f"pretrained:{path}"])
    assert keys(defences=[f"pretrained:{path}"]) == first
    save_file({name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}, path)
    assert keys(defences=[f"pretrained:{path}"]) != first


@pytest.mark.parametrize("spec", ["pretrained:{}", "topk:ratio=0.5+pretrained:checkpoint={}", "refiner:evaluator={}"])
def test_files_are_found_wherever_a_spec_names_them(spec: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    named = []
    for content in (b"one", b"two"):
        path.write_bytes(content)
        named.append(defence_part(spec.format(path)))
    assert named[0] != named[1]


@dataclass
class Holder:
    inner: Any


class Loose:
    def __init__(self, value: Any) -> None:
        self.value, self.itself = value, self


def test_content_is_what_a_value_holds_and_not_how_it_is_stored() -> None:
    weights = torch.arange(6.0)
    pairs = [
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0}),
        ({3, 1}, {1, 3}),
        (Holder([1]), Holder((1,))),
        (Loose(weights), Loose(weights.clone())),
    ]
    for one, other in pairs:
        assert content_of(one) == content_of(other)
    different = [1, True, "1", None, [1], {1}, {"1": 1}, Holder(1), Loose(1), Loose(weights), Loose(weights + 1), b"1"]
    assert len({identity_of(value=value) for value in different}) == len(different)


def test_only_what_went_well_is_final(tmp_path: Path) -> None:
    from fedseal.audit.runner import run_audit
    from fedseal.core.errors import CapabilityError

    calls: list[str] = []
    original = ATTACKS.entry("first-layer").factory

    class Moody(original):  # type: ignore[misc, valid-type]
        def check(self, observation: Any) -> None:
            calls.append("checked")
            if len(calls) == 1:
                raise CapabilityError("not prepared yet.")
            super().check(observation)

    entry = ATTACKS.entry("first-layer")
    object.__setattr__(entry, "factory", Moody)
    try:
        scenario = Scenario(data="digits", model="mlp:width=4", attacks=("first-layer",), targets=1)
        assert [one.status for one in run_audit([scenario], tmp_path).records] == ["refused"]
        assert [one.status for one in run_audit([scenario], tmp_path).records] == ["ok"]
        run_audit([scenario], tmp_path)
    finally:
        object.__setattr__(entry, "factory", original)
    assert len(calls) == 2


SCENARIO = """
name: copied
data: digits:size=8
model: {model}
client: {{batch_size: 1}}
attacks: [ig, idlg, first-layer]
defences: [none, topk]
attacker: {{aware: naive}}
iterations: 2
targets: 1
readings: 0
"""
NET = """
from torch import nn
from wiring import bend
class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layer = nn.Linear(64, num_classes)
    def forward(self, x):
        return bend(self.layer(x.flatten(1)))
"""
AUDIT = """
import sys
from pathlib import Path
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import load_scenario
from fedseal.core.watcher import Watcher
class Telling(Watcher):
    def started(self, task): print("ran", task.title)
run_audit([load_scenario(Path("scenario.yaml"))], Path("run"), watcher=Telling())
"""


def test_a_model_of_ones_own_counts_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))

    def named(net: str, wiring: str) -> list[str]:
        (tmp_path / "my_net.py").write_text(net)
        (tmp_path / "wiring.py").write_text(wiring)
        for module in ("my_net", "wiring"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()
        return keys(model="my_net:Net", data="digits:size=8")

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    straight, bent = "def bend(x):\n    return x\n", "def bend(x):\n    return x.sin()\n"
    first = named(NET, straight)
    assert named(NET, bent) != first  # the same weights, another model
    assert named(NET.replace("self.layer(x", "2 * self.layer(x"), straight) != first
    assert named("# tidied\n" + NET, straight) == first


@pytest.fixture
def audit(tmp_path: Path) -> Callable[[], set[str]]:
    """Audit in a process of its own with the package copied here, and return the cells that ran."""
    shutil.copytree(PACKAGE, tmp_path / "fedseal", ignore=shutil.ignore_patterns("__pycache__"))

    def run() -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", AUDIT],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return {line.removeprefix("ran ") for line in done.stdout.splitlines() if line.startswith("ran ")}

    return run


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new, 1))


@pytest.mark.slow
def test_a_changed_default_runs_that_attack_again_and_no_other(tmp_path: Path, audit: Callable[[], set[str]]) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO.format(model="mlp:width=4"))
    everything = {f"{attack} on {defence}" for defence in ("none", "topk") for attack in ("ig", "idlg", "first-layer")}
    assert audit() == everything
    package = tmp_path / "fedseal"
    with (package / "report" / "html.py").open("a") as file:
        file.write("\n_TURN = 1\n")
    edit(package / "federation" / "client.py", '"""', '"""In other words: ')
    edit(package / "attacks" / "inverting.py", "tv: Weight = 1e-4", "tv: Weight = 2e-4")
    assert audit() == {"ig on none", "ig on topk"}
    edit(package / "defences" / "pruning.py", "ratio: float = 0.8", "ratio: float = 0.7")
    assert audit() == {"ig on topk", "idlg on topk", "first-layer on topk"}
    with (package / "attacks" / "matching" / "engine.py").open("a") as file:
        file.write("\n_TURN = 1\n")
    assert audit() == {"ig on none", "ig on topk", "idlg on none", "idlg on topk"}
    with (package / "metrics" / "score.py").open("a") as file:  # how everything is scored
        file.write("\n_TURN = 1\n")
    assert audit() == everything


@pytest.mark.slow
def test_a_model_whose_code_changes_is_not_found_in_the_store(tmp_path: Path, audit: Callable[[], set[str]]) -> None:
    (tmp_path / "scenario.yaml").write_text(
        SCENARIO.format(model="my_net:Net").replace(", first-layer", "").replace(", topk", "")
    )
    (tmp_path / "my_net.py").write_text(NET)
    (tmp_path / "wiring.py").write_text("def bend(x):\n    return x\n")
    everything = {"ig on none", "idlg on none"}
    assert audit() == everything
    (tmp_path / "wiring.py").write_text("def bend(x):\n    return x.sin()\n")  # the same weights, another model
    assert audit() == everything
    (tmp_path / "my_net.py").write_text("# tidied\n" + NET.replace("x.flatten(1)", "(x.flatten(1))"))
    assert audit() == set()
