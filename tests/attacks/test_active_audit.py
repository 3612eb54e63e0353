"""Active attacks inside an audit: their own observation, what the ledger says, and wrong use explained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedseal.attacks.active.bins import bin_edges
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import validate_scenario
from fedseal.audit.setup import Setup, build_setup
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import Defence
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.defences.pipeline import build_defence

ACTIVE = ("imprint", "cah", "loki", "fishing:iterations=2", "suppression:iterations=2")


def setup_of(model: str = "lenet-relu", **values: Any) -> Setup:
    client = {"batch_size": 4, **values.pop("client", {})}
    return build_setup(
        validate_scenario({"data": "digits", "model": model, "client": client, "targets": 1, **values}, source="test")
    )


@pytest.mark.parametrize(
    "defences", [["none"], pytest.param(["none", "topk:ratio=0.9"], marks=pytest.mark.slow)], ids=["bare", "defended"]
)
def test_an_audit_runs_every_active_attack_and_says_what_the_server_did(tmp_path: Path, defences: list[str]) -> None:
    scenario = validate_scenario(
        {
            "data": "digits",
            "model": "lenet-relu",
            "client": {"batch_size": 4, "aggregate": 2},
            "attacks": [*ACTIVE, "ig:iterations=2"],
            "defences": defences,
            "targets": 2,
            "readings": 0,
        },
        source="test",
    )
    run = run_audit([scenario], tmp_path)
    assert {record.status for record in run.records} == {"ok"}, [r.message for r in run.records]
    for record in run.records:
        told = "the server altered the model" in record.knowledge["model"]
        assert told == (record.attack != "ig:iterations=2")
    sizes = {
        (r.attack, r.isolated, len(r.psnr), len(next(iter(r.baselines.values()))), len(r.line_up)) for r in run.records
    }
    assert {size for size in sizes if size[0].startswith("suppression")} == {("suppression:iterations=2", 4, 4, 4, 4)}
    assert {size[1:3] for size in sizes if size[0] in {"imprint", "loki", "ig:iterations=2"}} == {(None, 8)}
    fished = [r for r in run.records if r.attack.startswith("fishing")]
    assert all(r.isolated == len(r.psnr) == len(r.ssim) for r in fished)  # the filler is not scored
    psnr = {r.attack: max(r.psnr) for r in run.records if r.defence == "none"}
    assert psnr["imprint"] > 60
    assert psnr["cah"] > 60
    keys = {record.key for record in run.records}
    again = run_audit([scenario], tmp_path)
    assert {record.key for record in again.records} == keys


def test_local_steps_and_every_precision_run() -> None:
    for dtype in ("float16", "float32", "float64"):
        setup = setup_of(client={"batch_size": 2, "local_steps": 3, "dtype": dtype, "learning_rate": 0.01})
        for name in ("imprint", "imprint:sparse=true", "cah", "loki"):
            attack = ATTACKS.build(name)
            target = setup.observe(Defence(), 0, attack=attack)
            assert attack.run(target.observation).images.shape == target.originals.images.shape


def test_fishing_still_answers_where_a_defence_left_nothing() -> None:
    setup = setup_of()
    defence = build_defence("topk:ratio=0.999")
    attack = ATTACKS.build("fishing:iterations=2")
    found = attack.run(setup.observe(defence, 0, attack=attack).observation)
    assert found.images.shape == (4, 1, 28, 28)


def test_clients_keep_their_own_defence_from_round_to_round() -> None:
    seen: list[int] = []

    class Counting(Defence):
        name = "counting"

        def __init__(self) -> None:
            self.rounds = 0

        def on_update(self, update: Any, context: Any) -> Any:
            assert context.round == self.rounds
            self.rounds += 1
            seen.append(self.rounds)
            return update

    setup = setup_of(client={"batch_size": 2, "aggregate": 2})
    attack = ATTACKS.build("fishing:target=1")
    setup.observe(Counting(), 0, attack=attack)
    assert seen == [number for number in range(1, len(seen) // 2 + 1) for _ in range(2)]


@pytest.mark.parametrize(
    ("attack", "model", "values", "words"),
    [
        ("imprint", "mlp", {"attacker": {"public_data": False}}, "public images, and there are none"),
        ("cah", "mlp", {"attacker": {"public_data": False}}, "cah needs auxiliary"),
        ("loki", "mlp", {"attacker": {"public_data": False}}, "public images, and there are none"),
        ("imprint", "mlp", {"attacker": {"batch_size": False}}, "needs batch_size"),
        ("cah:place=model", "lenet-relu", {}, "finds no place in this model"),
        ("cah:place=model", "mlp:activation=sigmoid", {}, "ReLU behind it"),
        ("fishing", "cnn6", {}, "does not end in a linear one with a bias"),
        ("fishing", "mlp", {"client": {"local_steps": 2}}, "after the first local step"),
        ("suppression", "mlp", {}, "sees a single client anyway"),
        ("suppression", "mlp:depth=0", {"client": {"aggregate": 2}}, "a single layer"),
        ("suppression", "lenet", {"client": {"aggregate": 2, "local_steps": 6}}, "only a dead ReLU stays dead"),
    ],
)
def test_wrong_use_is_explained(attack: str, model: str, values: dict[str, Any], words: str) -> None:
    setup = setup_of(model, **values)
    with pytest.raises(CapabilityError, match=words):
        setup.observe(Defence(), 0, attack=ATTACKS.build(attack))


def test_a_recorded_update_of_an_honest_model_is_refused() -> None:
    observation = setup_of().observe(Defence(), 0).observation
    for name in ACTIVE:
        with pytest.raises(CapabilityError, match="needs an update of the model it altered"):
            ATTACKS.build(name).check(observation)
    with pytest.raises(CapabilityError, match="needs an update of the model it altered"):
        ATTACKS.build("loki").check(replace(observation, memory="something else"))


def test_options_out_of_range_are_refused() -> None:
    for spec in ("imprint:mode=0", "imprint:gain=-1", "cah:sigma=0", "loki:csf=0", "loki:gain=0"):
        with pytest.raises((InputError, UsageError)):
            ATTACKS.build(spec)
    with pytest.raises(InputError, match="1 bins separate nothing"):
        bin_edges(1, "normal")
    with pytest.raises(InputError, match="there is no class 12"):
        setup_of().observe(Defence(), 0, attack=ATTACKS.build("fishing:target=12"))


class Odd(nn.Module):
    """A user's module with shortcuts and functions instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.out = nn.Linear(4 * 28 * 28, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.a(x))
        return self.out((h + torch.relu(self.b(h))).flatten(1))


def test_a_users_own_module_is_attacked_too() -> None:
    setup = setup_of(client={"batch_size": 2, "aggregate": 2})
    setup = replace(setup, model=Odd())
    for name in ACTIVE:
        attack = ATTACKS.build(name)
        target = setup.observe(Defence(), 0, attack=attack)
        assert attack.run(target.observation).images.shape == target.originals.images.shape
