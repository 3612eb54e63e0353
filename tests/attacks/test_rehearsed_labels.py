"""Labels through the defence: learned on rehearsals where no formula survives, the named rule kept where it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedseal.attacks.labels import infer_labels
from fedseal.attacks.labels.rehearsed import can_rehearse
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, build_setup, make_aware
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation
from fedseal.defences.pipeline import build_defence
from fedseal.metrics.labels import label_accuracy

TARGETS = 6


def setup_of(batch_size: int = 1, network: str = "lenet-relu", **attacker: object) -> Setup:
    return build_setup(
        Scenario(
            data="digits",
            model=network,
            targets=TARGETS,
            client={"batch_size": batch_size},
            attacker={"labels": "identity", **attacker},
        )
    )


def observations(setup: Setup, spec: str) -> list[tuple[Observation, Observation, object]]:
    """Return what a naive and an aware attacker see of each target, and the true labels."""
    found = []
    for target in range(TARGETS):
        defence = build_defence(spec)
        seen = setup.observe(defence, target, name=spec)
        found.append((seen.observation, make_aware(seen.observation, defence, spec), seen.originals.labels))
    return found


def accuracy(pairs: list[tuple[Observation, object]]) -> float:
    shares = [label_accuracy(labels, infer_labels(seen, 0).labels) for seen, labels in pairs]  # type: ignore[arg-type]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("network", ["lenet-relu", "lenet-sigmoid"])
@pytest.mark.parametrize("batch_size", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_who_knows_dual_pruning_reads_its_labels(batch_size: int, network: str):
    seen = observations(setup_of(batch_size, network=network), "dgp")
    naive = accuracy([(observation, labels) for observation, _, labels in seen])
    aware = accuracy([(observation, labels) for _, observation, labels in seen])
    assert naive < 0.7
    assert aware > 0.95


def test_a_rule_that_reads_as_well_is_kept():
    for naive, aware, _ in observations(setup_of(), "gaussian:sigma=0.001"):
        assert infer_labels(aware, 0).labels.tolist() == infer_labels(naive, 0).labels.tolist()
        assert not any("rehearsals" in note for note in infer_labels(aware, 0).notes)


def test_without_public_data_the_named_rule_is_all_there_is():
    _, aware, _ = observations(setup_of(public_data=False), "dgp")[0]
    assert not can_rehearse(aware)
    assert not any("rehearsals" in note for note in infer_labels(aware, 0).notes)
    asked = replace(aware, knowledge=replace(aware.knowledge, label_rule="rehearsed"))
    with pytest.raises(CapabilityError, match="only with public data"):
        infer_labels(asked, 0)


def test_the_rule_can_be_named_by_a_naive_attacker_too():
    seen = observations(setup_of(labels="rehearsed"), "none")
    assert accuracy([(observation, labels) for observation, _, labels in seen]) > 0.95
