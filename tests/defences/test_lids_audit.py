"""LIDS in an audit: prepared on all a client holds, scored by what was fed and by what that came from (C7)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.defences.lids.defence import Lids
from fedseal.defences.pipeline import build_defence

LIDS = "lids:epochs=2,cache=false"


def _scenario(**client: int) -> Scenario:
    return Scenario(
        data="photos:size=32",
        model="lenet-relu",
        client={"batch_size": 8, **client},
        defences=("none", LIDS),
        attacks=("ig:iterations=2",),
        attacker={"labels": "true"},
        targets=2,
        readings=0,
    )


def test_a_client_prepares_all_it_holds_and_is_scored_by_what_it_fed():
    setup = build_setup(_scenario(examples=40))
    assert setup.images_per_target == 40
    target = setup.observe(build_defence(LIDS), 0, name=LIDS)
    assert isinstance(target.defence, Lids)
    built = target.defence._built
    assert built is not None
    assert len(built.groups.real) == 40
    assert len(target.fed) == 8
    assert len(target.originals) == 2  # two groups of four
    assert torch.equal(target.fed.images[::4], target.originals.images)
    assert torch.equal(target.observation.knowledge.labels, target.fed.labels)  # type: ignore[arg-type]
    held = setup.holdings(0, build_defence(LIDS))
    assert held is not None
    assert torch.equal(held[0].images[:8], setup.observe(build_defence("none"), 0, name="none").originals.images)


def test_clients_hold_sixty_four_images_unless_the_data_are_few():
    few = build_setup(_scenario())
    assert few.images_per_target == 64
    many = build_setup(_scenario().model_copy(update={"targets": 10}))
    assert many.images_per_target == len(many.private) // 10
    plain = build_setup(_scenario().model_copy(update={"defences": ("none",)}))
    assert plain.images_per_target == 8


@pytest.mark.slow
def test_the_report_says_how_many_synthetic_images_reach_tau_and_records_score_both(tmp_path: Path):
    run = run_audit([_scenario(examples=24)], tmp_path)
    record = next(record for record in run.records if record.defence == LIDS)
    assert record.status == "ok", record.message
    assert any("of the synthetic images reach tau = 18 dB" in remark for remark in record.cost["remarks"])
    assert len(record.psnr) == 2
    assert {len(values) for values in record.baselines.values()} == {2}
    assert record.psnr_fed is not None
    assert len(record.psnr_fed) == 8


def test_a_batch_smaller_than_a_group_is_scored_too(tmp_path: Path):
    scenario = _scenario(examples=12).model_copy(update={"targets": 1})
    scenario = scenario.model_copy(update={"client": scenario.client.model_copy(update={"batch_size": 1})})
    record = next(record for record in run_audit([scenario], tmp_path).records if record.defence == LIDS)
    assert record.status == "ok", record.message
    assert len(record.psnr) == len(record.psnr_fed or ()) == 1
