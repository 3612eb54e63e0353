"""Why an attack failed: each planted cause is named, and where nothing is wrong nothing is said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fedseal
from fedseal.audit.cells import Cell
from fedseal.audit.levels import RiskLevel
from fedseal.audit.second_look import explained
from fedseal.audit.symptoms import Symptoms, symptoms_of
from fedseal.audit.why import causes, has_failed, last_fall, reasons
from fedseal.cli import app
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.metrics.intervals import Interval
from fedseal.report.html import render_html
from fedseal.report.junit import render_junit
from fedseal.report.machine import render_json
from fedseal.report.terminal import render_terminal
from fedseal.store.records import TrialRecord

SHAPE = (1, 4, 4)


def linear(width: int = 20) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4))


def looked_at(
    model: nn.Module, config: RoundConfig | None = None, images: int = 4, found: Tensor | None = None
) -> Symptoms:
    config = config or RoundConfig()
    truth = Batch(torch.rand(images, *SHAPE, generator=generator(0)), torch.arange(images) % 4)
    model = set_mode(model, config)
    steps = [truth.pick(places) for places in torch.arange(images).split(images // config.local_steps)]
    done = client_round(model, steps, config, Defence(), generator(0))
    known = Knowledge(SHAPE, 4, bn_mode=config.bn_mode)
    return symptoms_of(Observation(model, done.update, known), config, truth, found)


def topics(found: Symptoms, attack: str = "ig") -> list[str]:
    return [finding.topic for finding in causes(found, attack)]


def test_a_sound_setting_has_no_cause():
    assert topics(looked_at(linear(), images=2)) == []
    assert topics(looked_at(linear(), images=2), "spear") == []


def test_a_huge_learning_rate_is_named():
    found = looked_at(linear(), RoundConfig(local_steps=2, learning_rate=500.0))
    assert topics(found)[0] == "learning rate"
    assert "raised its loss" in causes(found, "ig")[0].text
    assert "50" in causes(found, "ig")[0].advice


def test_a_small_one_is_not():
    assert topics(looked_at(linear(), RoundConfig(local_steps=2, learning_rate=0.01))) == []


def test_batch_statistics_are_named_with_what_they_cost():
    found = looked_at(normalised(), RoundConfig(bn_mode="train-nostats"))
    assert topics(found) == ["batch statistics"]
    assert found.own_distance > 0.01
    assert topics(looked_at(normalised(), RoundConfig(bn_mode="eval"))) == []


def test_more_images_than_a_layer_holds_are_named_for_attacks_by_algebra_only():
    found = looked_at(linear(), images=24)
    assert topics(found, "spear")[0] == "rank"
    assert "24 images are behind a layer of 16 inputs" in causes(found, "spear")[0].text
    assert topics(found, "ig") == []


def test_a_spectrum_without_end_is_named():
    model = linear()
    truth = Batch(torch.rand(2, *SHAPE, generator=generator(0)), torch.arange(2))
    sent = client_round(model, [truth], RoundConfig(), Defence(), generator(0)).update
    noisy = {n: t + 0.1 * torch.randn(t.shape, generator=generator(1, n)) for n, t in sent.tensors.items()}
    observation = Observation(model, replace(sent, tensors=noisy), Knowledge(SHAPE, 4))
    assert "gap" in topics(symptoms_of(observation, RoundConfig(), truth), "first-layer")


def test_a_long_way_is_named_and_who_follows_it_is_told_so():
    found = looked_at(linear(), RoundConfig(local_steps=4, local_epochs=40, learning_rate=1.0))
    assert found.turn is not None
    assert found.turn < 0.9
    said = {one.topic: one for one in causes(found, "fedleak")}
    assert "sme" in said["steps"].advice
    assert {one.topic: one for one in causes(found, "sme")}["steps"].severity == "note"


def test_a_residual_tells_a_failed_search_from_an_update_that_does_not_tell():
    truth = torch.rand(4, *SHAPE, generator=generator(0))
    right = causes(looked_at(linear(), found=truth), "ig")[-1]
    wrong = causes(looked_at(linear(), found=1 - truth), "ig")[-1]
    assert (right.topic, wrong.topic) == ("residual", "residual")
    assert "does not tell them apart" in right.text
    assert "does not explain the update" in wrong.text


def record(**settings: object) -> TrialRecord:
    plain = {
        "key": "k",
        "scenario": "s",
        "defence": "none",
        "attack": "ig",
        "aware": False,
        "target": 0,
        "psnr": (9.0,),
    }
    return TrialRecord.model_validate(plain | settings)


def cell(*records: TrialRecord, attack: str = "ig", defence: str = "none") -> Cell:
    return Cell("s", defence, attack, False, records, psnr=Interval(9.0, 8.0, 10.0, len(records)))


def falling(steps: int, rate: float) -> tuple[tuple[int, float], ...]:
    return tuple((step, rate**step) for step in range(0, steps + 1, max(1, steps // 20)))


def test_too_few_iterations_are_named_while_the_objective_falls():
    found = reasons(cell(record(trace=falling(100, 0.98)), record(trace=falling(100, 0.98))))
    assert [one.topic for one in found] == ["iterations"]
    assert "18%" in found[0].text
    assert "iterations: 400" in found[0].advice
    assert reasons(cell(record(trace=tuple((step, 0.5) for step in range(100))))) == ()


def test_the_last_fall_by_hand():
    assert last_fall(((0, 4.0), (10, 3.0), (50, 2.5), (90, 2.0), (100, 1.5))) == pytest.approx(0.25)
    assert last_fall(((0, 4.0), (100, 1.0))) is None


def test_steps_labels_and_divergence_are_read_from_the_records():
    told = {"local steps": "4 in each of 5 passes over the same batches"}
    lost = record(knowledge=told, label_accuracy=0.25, label_chance=0.1, notes=("2 of 4 starts diverged",))
    assert [one.topic for one in reasons(cell(lost, attack="fedleak"))] == ["local steps", "divergence", "labels"]
    assert [one.topic for one in reasons(cell(lost, attack="sme"))] == ["divergence", "labels"]


def test_a_defence_that_shows_nothing_is_no_failure_of_the_attack():
    lost = record(defence="gaussian", label_accuracy=0.0, label_chance=0.1)
    assert not has_failed(cell(lost, defence="gaussian"))
    assert reasons(cell(lost, defence="gaussian")) == ()
    leaking = replace(cell(lost), leaks=(("found", RiskLevel.HIGH),))
    assert not has_failed(leaking)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedseal.Run:
    """Audit with next to no iterations."""
    return fedseal.audit(
        data="faces:size=8",
        model="lenet:init=wide-uniform",
        attacks="ig:iterations=6,tv=0,schedule=constant,lr=0.02",
        attacker={"labels": "true", "public_images": 60},
        targets=2,
        readings=0,
        out=tmp_path_factory.mktemp("why"),
    )


def test_an_audit_that_stopped_early_is_told_so_in_its_cell_and_by_the_command(run: fedseal.Run):
    (found,) = list(explained(run))
    assert found[0].attack.startswith("ig")
    said = [one.topic for one in found[1]]
    assert "iterations" in said
    assert "residual" in said
    shown = CliRunner().invoke(app, ["why", str(run.directory)])
    assert shown.exit_code == 0, shown.output
    assert "still falling" in shown.output
    assert "was still falling" in render_html(run)
    assert "why: the objective was still falling" in render_junit(run, None)
    (written,) = json.loads(render_json(run))["cells"]
    assert written["why"][0]["topic"] == "iterations"
    assert "was still falling" in " ".join(str(part) for part in render_terminal(run).renderables)  # type: ignore[union-attr]


def test_a_run_whose_data_are_gone_is_explained_by_its_records_alone(run: fedseal.Run):
    lost = replace(run, scenarios=tuple(one.model_copy(update={"data": "folder:/nowhere"}) for one in run.scenarios))
    ((_, findings),) = list(explained(lost))
    assert "replay" in [one.topic for one in findings]
