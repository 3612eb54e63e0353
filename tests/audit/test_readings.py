"""Audits read what uploads hold, beside their trials."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedseal.audit.readings import plan_readings
from fedseal.audit.runner import open_run, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.watcher import Task, Watcher


class Steps(torch.autograd.Function):
    """Rounding, with a derivative of its own that torch.func does not know."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


class Rounding(nn.Module):
    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(input_shape), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(Steps.apply(x.flatten(1)))
        return logits


SCENARIO = Scenario(
    data="faces:size=8",
    model="lenet-relu",
    defences=("none", "gaussian:sigma=0.01", "gaussian:sigma=10"),
    attacks=("ig:iterations=1",),
    targets=2,
    readings=1,
)


class Titles(Watcher):
    def __init__(self) -> None:
        self.begun: list[str] = []

    def started(self, task: Task) -> None:
        self.begun.append(task.title)


def test_each_defence_is_read_and_stored_and_read_once(tmp_path: Path):
    run = run_audit([SCENARIO], tmp_path)
    assert [(r.defence, r.target) for r in run.readings] == [(d, 0) for d in SCENARIO.defences]
    none, some, much = (r.psnr_db for r in run.readings)
    assert none is not None
    assert some is not None
    assert much is not None
    prior = run.readings[0].prior_db
    assert prior is not None
    assert none > some + 10 > much + 10
    assert much == pytest.approx(prior, abs=0.1)
    assert open_run(tmp_path).readings == run.readings
    watcher = Titles()
    run_audit([SCENARIO], tmp_path, watcher=watcher)
    assert watcher.begun == []


def test_a_reading_says_where_it_leaks_and_how_much_noise_would_do(tmp_path: Path):
    run = run_audit([SCENARIO.model_copy(update={"defences": ("none",)})], tmp_path)
    (reading,) = run.readings
    assert list(reading.per_layer) == ["0", "2", "4", "7"]
    assert set(reading.sigma_for) == {"20", "15", "10", "low"}
    assert reading.sigma_for["20"] is not None
    assert reading.sigma_for["20"] > 0
    assert reading.prior_db is not None
    assert (reading.sigma_for["10"] is None) == (reading.prior_db > 10)
    assert reading.artefact is not None
    assert load_file(tmp_path / reading.artefact)["pixel_map"].shape[-2:] == (8, 8)


def test_the_noise_for_a_level_brings_the_audit_there(tmp_path: Path):
    first = run_audit([SCENARIO.model_copy(update={"defences": ("none",)})], tmp_path / "one")
    spec = f"gaussian:sigma={first.readings[0].sigma_for['20']},clip=inf"
    noisy = run_audit([SCENARIO.model_copy(update={"defences": (spec,)})], tmp_path / "two")
    (found,) = (reading.psnr_db for reading in noisy.readings if reading.defence == spec)
    assert found == pytest.approx(20, abs=0.2)


def test_no_readings_are_made_where_none_are_asked_for(tmp_path: Path):
    assert run_audit([SCENARIO.model_copy(update={"readings": 0})], tmp_path).readings == ()


def test_what_cannot_be_read_says_why_and_does_not_stop_the_audit(tmp_path: Path):
    odd = SCENARIO.model_copy(update={"model": "tests.audit.test_readings:Rounding", "defences": ("none",)})
    run = run_audit([odd], tmp_path)
    assert run.readings[0].psnr_db is None
    assert run.readings[0].reason.startswith("the upload cannot be differentiated")


def test_keys_name_the_defence_and_the_target():
    jobs = plan_readings(build_setup(SCENARIO.model_copy(update={"readings": 2})))
    assert len({job.key for job in jobs}) == len(jobs) == 6
