"""What must be known before scores are believed is found before any attack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedseal.audit.precautions import duplicates, strangers, weapon
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, build_setup
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.store.findings import Finding


def setup_of(**values: Any) -> Setup:
    return build_setup(Scenario.model_validate({"data": "faces:size=8", "model": "mlp", "targets": 4} | values))


def topics(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.topic) for finding in found]


def test_an_honest_model_is_no_weapon():
    for model in ("mlp", "lenet:init=wide-uniform", "lenet-relu"):
        assert list(weapon(setup_of(model=model, client={"batch_size": 4}))) == []


def test_a_weaponised_model_is_a_finding_before_any_attack():
    setup = setup_of(model="mlp:width=64", client={"batch_size": 4})
    layer = next(module for module in setup.model.modules() if isinstance(module, torch.nn.Linear))
    with torch.no_grad():  # bins of an imprint block: one direction, many biases
        layer.weight.copy_(torch.ones_like(layer.weight) / layer.weight.shape[1])
        assert layer.bias is not None
        layer.bias.copy_(-torch.linspace(0.2, 0.8, len(layer.bias)))
    assert ("problem", "weaponised model") in topics(list(weapon(setup)))


class Exits(torch.nn.Module):
    """Leaves when it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(0)


def test_a_model_that_leaves_is_said_to():
    (found,) = weapon(replace(setup_of(), model=Exits()))
    assert (found.severity, found.topic) == ("warning", "detector")
    assert "SystemExit" in found.text


def test_private_images_that_are_public_are_named():
    setup = setup_of()
    assert list(duplicates(setup)) == []
    own = setup.batches(2, setup.shape(Defence()))[0]
    public = Batch(torch.cat([setup.public.images, own.images]), torch.cat([setup.public.labels, own.labels]))
    (found,) = duplicates(replace(setup, public=public))
    assert "1 of 4 private images are public as well (target/image 2/0)" in found.text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"data": "digits:size=8"}, []),
        ({}, [("note", "strangers")]),
        ({"targets": 60}, [("warning", "strangers")]),
        ({"targets": 2}, [("note", "strangers"), ("warning", "targets")]),
    ],
)
def test_few_strangers_and_few_targets_are_said(values: dict[str, Any], expected: list[tuple[str, str]]):
    assert topics(list(strangers(setup_of(**values)))) == expected


@pytest.mark.parametrize(
    ("seeds", "targets", "expected"),
    [
        ([0, 1, 2, 3], 1, []),  # intervals are over seeds, however few the targets
        ([0, 1, 2], 8, [("warning", "weight seeds")]),
        ([0, 1], 1, [("warning", "weight seeds")]),
        ([0], 8, []),
    ],
)
def test_weight_seeds_too_few_for_an_interval_are_said(seeds: list[int], targets: int, expected: list[tuple[str, str]]):
    setup = setup_of(data="digits:size=8")
    scenario = setup.scenario.model_copy(update={"weight_seeds": seeds, "targets": targets})
    assert topics(list(strangers(replace(setup, scenario=scenario)))) == expected


def test_strangers_are_nobodys_target_and_not_public():
    setup = setup_of()
    assert len(setup.strangers) == 53  # of 70 private images a quarter is kept for targets
    seen = torch.cat(
        [setup.public.images, *(b.images for t in range(4) for b in setup.batches(t, setup.shape(Defence())))]
    )
    distances = torch.cdist(setup.strangers.images.flatten(1), seen.flatten(1))
    assert float(distances.min()) > 0
