"""Whose images are attacked: members of a partition's population, as trainings deal the data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from fedseal.audit.plan import plan_jobs
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, build_setup
from fedseal.core.errors import InputError
from fedseal.data.partition import partition
from fedseal.data.partition.features import image_variation
from fedseal.defences.pipeline import build_defence


def setup_of(client: dict[str, Any], **values: Any) -> Setup:
    return build_setup(Scenario(**{"data": "digits", "model": "mlp", "targets": 3, "client": client, **values}))


def labels(setup: Setup, defence: str = "none") -> list[list[int]]:
    shape = setup.shape(build_defence(defence))
    return [torch.cat([b.labels for b in setup.batches(t, shape)]).tolist() for t in range(setup.scenario.targets)]


def test_clients_of_one_class_send_batches_of_one_class() -> None:
    found = labels(setup_of({"batch_size": 8, "partition": "classes:per_client=1"}))
    assert [len(set(own)) for own in found] == [1, 1, 1]
    assert len({own[0] for own in found}) == 3  # three members, of three classes


@pytest.mark.parametrize("spec", ["iid", "dirichlet:alpha=0.1", "classes:per_client=2", "quantity", "total-variation"])
def test_every_batch_is_of_one_member_and_no_image_is_used_twice(spec: str) -> None:
    setup = setup_of({"batch_size": 4, "local_steps": 2, "partition": spec})
    dealt = partition(setup.private, spec, 10, 0)
    used = [setup.targets.clients(t, setup.shape(build_defence("none")))[0] for t in range(3)]
    assert all(any(set(places.tolist()) <= set(own.tolist()) for own in dealt.indices) for places in used)
    assert len(torch.cat(used).unique()) == 3 * 8


def test_one_member_is_attacked_by_batches_of_its_own() -> None:
    means = []
    for member in (0, 4):
        setup = setup_of({"batch_size": 8, "partition": "total-variation", "population": 5, "member": member})
        shape = setup.shape(build_defence("none"))
        places = torch.cat([setup.targets.clients(t, shape)[0] for t in range(3)])
        assert len(places.unique()) == 24
        means.append(float(image_variation(setup.private.images[places]).mean()))
    assert means[0] < 0.8 * means[1]  # the first holds the smoothest


def test_under_a_mean_the_first_client_is_the_one_attacked_alone() -> None:
    setup = setup_of({"batch_size": 2, "partition": "dirichlet:alpha=0.5"}, defences=["none", "secagg:clients=3"])
    alone, together = labels(setup), labels(setup, "secagg:clients=3")
    assert [own[:2] for own in together] == alone
    assert {len(own) for own in together} == {6}


def test_strangers_are_nobodys_target_and_the_same_for_more_targets() -> None:
    few = setup_of({"batch_size": 4, "partition": "dirichlet:alpha=0.5"})
    more = setup_of({"batch_size": 4, "partition": "dirichlet:alpha=0.5"}, targets=6)
    assert torch.equal(few.strangers.images, more.strangers.images)
    shape = more.shape(build_defence("none"))
    attacked = torch.cat([batch.images for t in range(6) for batch in more.batches(t, shape)]).flatten(1)
    apart = torch.cdist(attacked.double(), more.strangers.images.double().flatten(1))
    assert float(apart.min()) > 1e-6


def test_too_few_large_clients_are_refused_in_words() -> None:
    with pytest.raises(InputError, match=r"quantity:power=3 leaves clients for \d+ targets"):
        setup_of({"batch_size": 64, "partition": "quantity:power=3", "population": 40}, targets=60)


def test_a_member_needs_a_partition_and_a_stage_has_its_own() -> None:
    with pytest.raises(ValidationError, match="set partition too"):
        Scenario(client={"member": 1})
    with pytest.raises(ValidationError, match="count from 0"):
        Scenario(client={"partition": "iid", "member": 10})
    with pytest.raises(ValidationError, match=r"stage\.partition"):
        Scenario(client={"partition": "iid"}, stage={"round": 1})


def test_only_a_partition_names_trials_anew() -> None:
    def keys(client: dict[str, Any]) -> list[str]:
        return [trial.key for job in plan_jobs(setup_of(client, attacks="ig")) for trial in job.trials]

    assert keys({}) == keys({"population": 7})
    assert keys({}) != keys({"partition": "iid"})
    assert keys({"partition": "iid"}) != keys({"partition": "iid", "population": 7})


def test_an_attacker_without_statistics_does_not_have_them_and_is_told_so() -> None:
    for granted in (True, False):
        setup = build_setup(
            Scenario(
                data="faces:size=8",
                model="convbn",
                targets=1,
                client={"bn_mode": "train-exact-stats", "batch_size": 2},
                attacker={"bn_statistics": granted},
            )
        )
        known = setup.observe(build_defence("none"), 0).observation.knowledge
        assert (known.bn_statistics is not None) == granted
        assert (known.bn_mode == "train-exact-stats") == granted
