"""Planted systems: what leaks is never called low, however short the search; what holds nothing is.

The gravest error of an auditor is a false "low". Every system here leaks by a route that some audit has missed: the
attacks are given next to no budget on purpose, so that the verdict has to rest on what the update holds.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedseal.audit.levels import State
from fedseal.audit.run import Run
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.cli import app
from fedseal.core.defence import DEFENCES
from fedseal.core.errors import InputError

_here = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("soundness_planted", _here / "planted.py")
assert _spec is not None
assert _spec.loader is not None
planted = importlib.util.module_from_spec(_spec)
sys.modules["soundness_planted"] = planted
_spec.loader.exec_module(planted)


@pytest.fixture(scope="module", autouse=True)
def _planted() -> Iterator[None]:
    DEFENCES.names()  # what is registered anyway comes first
    with planted.known():
        yield


WEAK = "ig:iterations=3"
"""A search that finds nothing."""

LEAKY_OF_EACH_KIND = (
    "none",
    "gaussian:sigma=0.01",
    "topk:ratio=0.9",
    "dgp",
    "planted-permuted",
    "planted-labels-only",
    "planted-declared-noise",
    "planted-declared-fixed",
    "planted-small-pool",
    "planted-quiet-corner",
    "planted-opposite-pairs",
    "planted-steps",
    "planted-signs",
    "planted-negative",
)
"""What is tried always; all others are slow."""

OTHER_LEAKY = (
    "gaussian:sigma=1e-6",
    "quantise:bits=1",
    "quantise:bits=1,sign=bare",
    "quantise:bits=2",
    "adadefense:dtype=bfloat16",
    "minmax:ratio=0.95",
    "soteria",
    "planted-fortress",
    "planted-transposed",
    "planted-bias-noise",
    "planted-fixed-seed",
    "planted-sometimes",
    "planted-last-layer",
    "planted-mean-colour",
    "planted-half-noise",
    "planted-declared-sometimes",
    "planted-some-classes",
    "planted-one-clear",
    "planted-fine-steps",
    "planted-common-noise",
    "planted-smuggler",
    "planted-shuffled-pixels",
    "planted-padded",
    "planted-low-rank",
    "planted-wrapped",
    "planted-scaled",
    "planted-sorted",
)
SAFE = (
    "gaussian:sigma=100",
    "laplace:scale=300",
    "dp-sgd:sigma=30",
    "planted-random-vector",
    "planted-other-data",
    "planted-shouting",
    "planted-always-the-same",
    "planted-heavy-tails",
    "planted-flat-noise",
    "planted-rounded-noise",
)
SAFE_OF_EACH_KIND = ("gaussian:sigma=100", "planted-random-vector", "planted-heavy-tails", "planted-rounded-noise")


def audited(out: Path, data: str, **keys: object) -> Run:
    return run_audit(
        [Scenario.model_validate({"data": data, "attacks": (WEAK,), "targets": 4, "readings": 1, **keys})], out
    )


def states(run: Run) -> dict[str, State | None]:
    return {row.defence: row.state for row in run.verdict().rows}


def searched_in_vain(out: Path, digits: str, defences: tuple[str, ...]) -> Run:
    """Attacked by those who know no defence only: the less is found, the harder for the verdict."""
    keys = {"model": "mlp:width=16", "defences": defences, "targets": 8, "attacker": {"aware": "naive"}}
    return audited(out, digits, **keys)


@pytest.fixture(scope="module")
def leaky(_planted: None, digits: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return searched_in_vain(tmp_path_factory.mktemp("leaky"), digits, LEAKY_OF_EACH_KIND)


@pytest.fixture(scope="module")
def others(_planted: None, digits: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return searched_in_vain(tmp_path_factory.mktemp("others"), digits, OTHER_LEAKY)


@pytest.mark.parametrize("defence", LEAKY_OF_EACH_KIND)
def test_what_leaks_is_never_low(leaky: Run, defence: str):
    assert states(leaky)[defence] not in {State.LOW, None}


@pytest.mark.slow
@pytest.mark.parametrize("defence", OTHER_LEAKY)
def test_what_leaks_otherwise_is_never_low(others: Run, defence: str):
    assert states(others)[defence] not in {State.LOW, None}


def test_who_declares_nothing_is_told_what_that_means(leaky: Run):
    told = {reading.defence: " ".join(reading.remarks) for reading in leaky.readings}
    assert "declares nothing of how" in told["planted-permuted"]
    assert "declares nothing of how" not in told["topk:ratio=0.9"]


def test_who_lies_is_refuted(leaky: Run):
    refuted = {reading.defence for reading in leaky.readings if reading.refuted}
    lying = {name for name in LEAKY_OF_EACH_KIND if name.startswith("planted-")}
    lying -= {"planted-permuted", "planted-labels-only", "planted-negative"}
    assert refuted >= lying
    assert not refuted & {"none", "topk:ratio=0.9", "dgp", "gaussian:sigma=0.01"}


def test_labels_alone_are_a_leak(leaky: Run):
    row = next(row for row in leaky.verdict().rows if row.defence == "planted-labels-only")
    assert row.state is State.LEAK


def test_what_holds_nothing_is_low(digits: str, tmp_path: Path):
    run = audited(tmp_path, digits, model="mlp:width=16", defences=SAFE_OF_EACH_KIND, attacker={"aware": "naive"})
    found = states(run)
    assert {name: found[name] for name in SAFE_OF_EACH_KIND} == dict.fromkeys(SAFE_OF_EACH_KIND, State.LOW), run


@pytest.mark.slow
def test_what_holds_nothing_is_low_in_nineteen_seeds_of_twenty(digits: str, tmp_path: Path):
    """By `pytest -m slow tests/soundness -k twenty`; a leak by chance may be seen in 5 % of audits."""
    low = dict.fromkeys(SAFE, 0)
    for seed in range(20):
        run = audited(tmp_path / str(seed), digits, model="mlp:width=16", defences=SAFE, seed=seed)
        for defence, state in states(run).items():
            low[defence] = low.get(defence, 0) + (state is State.LOW)
    assert all(low[defence] >= 19 for defence in SAFE), low


@pytest.mark.parametrize(
    ("why", "keys"),
    [
        ("one step of search", {"model": "lenet-relu", "iterations": 1}),
        ("a batch in which few images leak", {"model": "mlp:width=64", "client": {"batch_size": 16}}),
        ("an aggregate of two", {"model": "mlp:width=16", "client": {"aggregate": 2}}),
        ("several local steps", {"model": "mlp:width=16", "client": {"local_steps": 2}}),
        ("half precision", {"model": "mlp:width=16", "client": {"dtype": "float16"}}),
    ],
)
def test_a_hard_setting_is_no_safety(digits: str, tmp_path: Path, why: str, keys: dict[str, object]):
    found = states(audited(tmp_path, digits, **{"defences": ("none",), **keys}))
    assert found["none"] not in {State.LOW, None}, why


def test_few_of_many_read_by_a_server_that_changes_the_model_are_a_leak(digits: str, tmp_path: Path):
    """CAH with 8 rows on batches of 64: most images stay unread, and their mean once said low."""
    keys = {"attacks": ("cah:rows=8",), "client": {"batch_size": 64}, "readings": 0}
    run = audited(tmp_path, digits, model="mlp:width=16", defences=("none",), **keys)
    (row,) = run.verdict().rows
    assert row.state is State.LEAK
    read = [score > 20 for record in run.records for score in record.psnr]
    assert 0 < sum(read) < len(read) / 4  # as few as it takes for the question to be one


def test_blank_and_doubled_images_do_not_hide_the_others(digits: str, tmp_path: Path):
    from fedseal.data.registry import DATASETS

    whole = DATASETS.build(digits)
    images = whole.images.clone()
    images[::4] = 0
    images[1::4] = images[1]
    path = tmp_path / "blank.npz"
    import numpy as np

    np.savez(path, images=images.permute(0, 2, 3, 1).numpy(), labels=whole.labels.numpy())
    run = audited(tmp_path / "run", f"npz:{path}", model="mlp:width=16", defences=("none",), targets=8)
    assert states(run)["none"] not in {State.LOW, None}


def test_a_model_built_to_leak_is_found_under_a_passive_audit(
    digits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "weapon.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.net = nn.Sequential(nn.Flatten(), nn.Linear(196, 128), nn.ReLU(), nn.Linear(128, 10))\n"
        "        with torch.no_grad():\n"
        "            self.net[1].weight.fill_(1 / 196)\n"
        "            self.net[1].bias.copy_(-torch.linspace(0.02, 0.4, 128))\n"
        "    def forward(self, x):\n"
        "        return self.net(x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = audited(tmp_path / "run", digits, model="weapon:Net", defences=("none",), client={"batch_size": 4})
    assert states(run)["none"] not in {State.LOW, None}
    told = " ".join(finding.text for found in run.findings.values() for finding in found)
    assert "weapon" in told or "imprint" in told or "built" in told, told


@pytest.mark.parametrize("source", ["import sys\nsys.exit()\n", "def Net():\n    raise SystemExit(0)\n"])
def test_a_model_that_exits_does_not_pass_a_build(
    digits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
):
    (tmp_path / "leaving.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "leaving", raising=False)
    done = CliRunner().invoke(
        app,
        ["audit", "--model", "leaving:Net", "--data", digits, "--out", str(tmp_path / "o"), "--workers", "1"],
    )
    assert isinstance(done.exception, InputError)  # which the command line answers with exit code 2


def test_too_few_targets_are_no_verdict(digits: str, tmp_path: Path):
    found = states(audited(tmp_path, digits, model="mlp:width=16", defences=("gaussian:sigma=10,clip=inf",), targets=2))
    assert found["gaussian:sigma=10,clip=inf"] in {State.TOO_FEW, State.LEAK}


def test_the_planted_systems_are_many():
    assert len({*LEAKY_OF_EACH_KIND, *OTHER_LEAKY}) >= 20
    assert set(SAFE_OF_EACH_KIND) < set(SAFE)
    assert len(SAFE) >= 6
