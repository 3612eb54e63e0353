"""Configuration as a defence: shapes are raised, never lowered; trained weights are what the server sends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.defence import RoundShape
from fedseal.core.errors import InputError, UsageError
from fedseal.defences.configuration import LargeBatch, LocalSteps, Pretrained
from fedseal.defences.pipeline import build_defence
from fedseal.models.checkpoint import save_checkpoint
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)


def model_of(seed: int) -> nn.Module:
    return build_model("resnet10:width=4", input_shape=SHAPE, num_classes=4, seed=seed)


@pytest.mark.parametrize(("had", "asked", "got"), [(1, 8, 8), (10, 8, 10), (3, 1, 3)])
def test_steps_and_batches_are_lower_bounds(had: int, asked: int, got: int):
    assert LocalSteps(asked).reshape(RoundShape(5, had, 2)) == RoundShape(5, got, 2)
    assert LargeBatch(asked).reshape(RoundShape(had, 5, 2)) == RoundShape(got, 5, 2)


def test_they_compose_in_any_order():
    for spec in ("local-steps:steps=4+large-batch:size=6+secagg", "large-batch:size=6+local-steps:steps=4+secagg"):
        assert build_defence(spec).reshape(RoundShape()) == RoundShape(6, 4, 3)


def test_an_audit_takes_more_images_and_an_update_of_another_kind():
    spec = "local-steps:steps=3+large-batch:size=2"
    scenario = Scenario.model_validate(
        {"data": "digits", "model": "lenet", "targets": 1, "attacks": ["dlg"], "defences": [spec]}
    )
    setup = build_setup(scenario)
    target = setup.observe(build_defence(spec), 0)
    assert target.observation.update.kind == "delta"
    assert len(target.originals) == 6
    assert target.observation.knowledge.local_steps == 3
    plain = setup.observe(build_defence("none"), 0)
    assert plain.observation.update.kind == "gradient"
    assert torch.equal(plain.originals.images, target.originals.images[:1])  # all defences start from the same image
    remark = " ".join(target.cost.remarks)
    assert "3 local steps" in remark


def test_trained_weights_are_loaded_into_a_copy(tmp_path: Path):
    trained, fresh = model_of(1), model_of(2)
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    save_checkpoint(trained, tmp_path / "weights.safetensors")
    wrapped = build_defence(f"pretrained:checkpoint={tmp_path / 'weights.safetensors'}").wrap_model(fresh)
    for name, tensor in wrapped.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name])
        assert torch.equal(fresh.state_dict()[name], before[name])
    assert build_defence(f"pretrained:{tmp_path / 'weights.safetensors'}").attacker_view().parameters == {
        "checkpoint": "weights.safetensors"
    }


def test_weights_of_another_model_are_refused(tmp_path: Path):
    save_checkpoint(nn.Linear(2, 2), tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match=r"weights\.safetensors"):
        Pretrained(tmp_path / "weights.safetensors").wrap_model(model_of(0))


def test_a_missing_file_is_refused_before_anything_runs_and_there_is_no_default(tmp_path: Path):
    with pytest.raises(UsageError, match="no checkpoint"):
        build_defence(f"pretrained:checkpoint={tmp_path / 'absent.safetensors'}")
    with pytest.raises(UsageError, match="needs 'checkpoint'"):
        build_defence("pretrained")


@pytest.mark.parametrize("spec", ["local-steps:steps=1", "large-batch:size=1", "pretrained:checkpoint=none"])
def test_zero_strength_leaves_everything_as_it_is(spec: str):
    defence, model = build_defence(spec), model_of(0)
    for shape in (RoundShape(), RoundShape(3, 4, 5)):
        assert defence.reshape(shape) == shape
    assert defence.wrap_model(model) is model
    assert defence.report().remarks == ()


@pytest.mark.parametrize("spec", ["local-steps:steps=0", "large-batch:size=-1"])
def test_nonsense_is_refused(spec: str):
    with pytest.raises(UsageError, match=spec.split(":")[0]):
        build_defence(spec)
