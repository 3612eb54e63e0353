"""The interface for programs: one call each, whatever form people have their things in."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedseal
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.data.registry import DATASETS
from fedseal.store.readings import ReadingRecord

SMALL: dict[str, Any] = {"data": "faces:size=8", "attacks": "ig:iterations=2", "targets": 1, "readings": 0}
YAML = "data: faces:size=8\nattacks: [ig:iterations=2]\ntargets: 1\nreadings: 0\n"
LEARNING: dict[str, Any] = {"data": "faces:size=8", "model": "mlp", "clients": 2, "federation": {"rounds": 1}}


def network(*, frozen: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
    if frozen:
        model[3].bias.requires_grad_(False)
    return model


def picture(count: int = 1) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def gradient_of(model: nn.Module, images: Tensor, labels: list[int]) -> tuple[Tensor, ...]:
    loss = nn.functional.cross_entropy(model(images), torch.tensor(labels))
    return torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])


def psnr(one: Tensor, other: Tensor) -> float:
    return float(-10 * (one - other).square().mean().log10())


# --- invert


def test_one_call_rebuilds_the_image_behind_a_gradient():
    model, image = network(), picture()
    stolen = fedseal.invert(model, gradient_of(model, image, [3]), input_shape=(1, 8, 8), iterations=300)
    assert stolen.labels.tolist() == [3]
    assert psnr(stolen.images, image) > 20


def test_the_gradient_may_be_a_tuple_a_list_a_generator_a_mapping_or_arrays():
    model, image = network(), picture()
    values = gradient_of(model, image, [3])
    names = [name for name, _ in model.named_parameters()]
    shuffled = dict(reversed(list(zip(names, values, strict=True))))
    forms: list[Any] = [values, list(values), iter(values), shuffled, [value.numpy() for value in values]]
    found = [fedseal.invert(model, form, input_shape=[1, 8, 8], attack="first-layer").images for form in forms]
    assert all(torch.equal(found[0], other) for other in found)
    assert psnr(found[0], image) > 60


def test_the_same_seed_gives_the_same_image_and_the_model_is_left_alone():
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradient = gradient_of(model, picture(), [3])
    one, same, other = (
        fedseal.invert(model, gradient, input_shape=(1, 8, 8), attack="ig", iterations=5, seed=seed).images
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_frozen_parameters_may_be_left_out_or_given_as_none():
    model = network(frozen=True)
    values = gradient_of(model, picture(), [3])
    out = fedseal.invert(model, values, input_shape=(1, 8, 8), attack="first-layer", labels=[3]).images
    with_none = fedseal.invert(model, (*values, None), input_shape=(1, 8, 8), attack="first-layer", labels=[3]).images
    assert torch.equal(out, with_none)


def test_a_weight_change_is_read_by_its_learning_rate():
    model, image = network(), picture()
    delta = [-0.1 * value for value in gradient_of(model, image, [3])]
    stolen = fedseal.invert(model, delta, input_shape=(1, 8, 8), kind="delta", learning_rate=0.1, attack="first-layer")
    assert psnr(stolen.images, image) > 60


def test_a_known_defence_makes_the_attacker_aware():
    model, image = network(), picture()
    values = gradient_of(model, image, [3])
    kept = [torch.where(v.abs() >= v.abs().flatten().quantile(0.9), v, torch.zeros_like(v)) for v in values]

    def loss(defence: str | None) -> float:
        found = fedseal.invert(
            model, kept, input_shape=(1, 8, 8), labels=[3], attack="ig", iterations=100, defence=defence
        )
        return found.objective

    assert loss("topk:ratio=0.9") < loss(None)


def test_public_images_serve_attacks_that_look_updates_up():
    model, private = network(), DATASETS.build("faces:size=8").batch(torch.arange(40))
    gradient = gradient_of(model, private.images[17:18], [int(private.labels[17])])
    found = fedseal.invert(model, gradient, input_shape=(1, 8, 8), attack="retrieval", public=private)
    assert torch.allclose(found.images, private.images[17:18])


def test_the_mode_of_the_model_says_how_batch_normalisation_ran():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)).train()
    gradient = gradient_of(model, picture(4), [1, 2, 3, 4])
    modes = {name: module.training for name, module in model.named_modules()}
    running = model[1].running_mean.clone()
    stolen = fedseal.invert(
        model, gradient, input_shape=(1, 8, 8), labels=torch.tensor([1, 2, 3, 4]), attack="ig", iterations=3
    )
    assert stolen.images.shape == (4, 1, 8, 8)
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert torch.equal(running, model[1].running_mean)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gradient": lambda g: g[:2]}, "has 2 tensor(s), the model 4"),
        ({"gradient": lambda g: g[0]}, "one for each parameter"),
        ({"gradient": lambda g: (g[1], g[0], *g[2:])}, "has shape [16], the model's is [16, 64]"),
        ({"gradient": lambda g: {"layer": g[0]}}, "is missing"),
        ({"gradient": lambda g: (None, *g[1:])}, "'1.weight' is None"),
        ({"gradient": lambda g: (g[0] * float("nan"), *g[1:])}, "NaN"),
        ({"input_shape": (8, 8)}, "input_shape cannot be (8, 8)"),
        ({"input_shape": (3, 8, 8)}, "does not accept images of shape [3, 8, 8]"),
        ({"num_classes": 4}, "has 10 output(s), not 4"),
        ({"labels": [10]}, "labels must be from 0 to 9"),
        ({"labels": [0.5]}, "whole numbers"),
        ({"labels": [1, 2], "batch_size": 3}, "2 label(s) for 3 image(s)"),
        ({"labels": "oracle"}, "no label rule called 'oracle'"),
        ({"attack": "igg"}, "no attack called 'igg'"),
        ({"defence": "topkk"}, "no defence called 'topkk'"),
        ({"kind": "weights"}, "kind cannot be 'weights'"),
        ({"kind": "delta"}, "only with the learning rate"),
        ({"local_steps": 2}, "2 local steps have no one gradient"),
        ({"batch_size": 0}, "batch_size cannot be 0"),
        ({"attack": "imprint", "public": "faces:size=8"}, "update of the model it altered"),
        ({"public": "digits"}, "public images are [1, 28, 28]"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(change: dict[str, Any], says: str):
    model = network()
    values: dict[str, Any] = {"input_shape": (1, 8, 8), "attack": "ig", "iterations": 1} | change
    make = values.pop("gradient", lambda g: g)
    with pytest.raises((InputError, UsageError, CapabilityError)) as error:
        fedseal.invert(model, make(gradient_of(model, picture(), [3])), **values)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


# --- audit, train, tradeoff


def test_packages_that_are_functions_are_both_at_any_time():
    """Before anything is imported, after a submodule is, and for every way of importing."""
    code = """
import fedseal
assert callable(fedseal.audit) and callable(fedseal.tradeoff)
import fedseal.audit.runner, fedseal.tradeoff.curves as curves
from fedseal import audit, tradeoff
from fedseal.audit import runner
assert fedseal.audit is audit and fedseal.audit.runner is runner and fedseal.tradeoff.curves is curves
assert callable(audit) and callable(tradeoff)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_that_is_a_function_shows_its_arguments():
    assert "out" in inspect.signature(fedseal.audit).parameters
    assert "scenario" in inspect.signature(fedseal.tradeoff).parameters


def test_an_audit_takes_a_scenario_in_any_form(tmp_path: Path):
    file = tmp_path / "scenario.yaml"
    file.write_text(YAML)
    forms: list[Any] = [fedseal.Scenario(**SMALL), SMALL, file, str(file), YAML]
    runs = [fedseal.audit(form, out=str(tmp_path / "run")) for form in forms]
    assert all(run == runs[0] for run in runs)
    assert runs[0] == fedseal.audit(**SMALL, out=tmp_path / "run")
    assert runs[0] == fedseal.open_run(str(tmp_path / "run"))


def test_values_replace_those_of_every_scenario_and_reach_into_its_parts(tmp_path: Path):
    first = fedseal.Scenario(name="first", **SMALL, client={"learning_rate": 0.5})
    run = fedseal.audit([first, {"name": "second", **SMALL}], client={"batch_size": 2}, out=tmp_path)
    assert [one.client.batch_size for one in run.scenarios] == [2, 2]
    assert run.scenarios[0].client.learning_rate == 0.5
    assert run.planned == 2


@pytest.mark.parametrize(
    ("source", "values", "says"),
    [
        ("nowhere.yaml", {}, "no scenario file nowhere.yaml"),
        ("data: [", {}, "line 1"),
        ({"targts": 1}, {}, "'targets'"),
        (SMALL, {"targets": 0}, "'targets' cannot be 0"),
        (7, {}, "cannot be made of int"),
    ],
)
def test_a_wrong_scenario_is_refused_in_words(source: Any, values: dict[str, Any], says: str, tmp_path: Path):
    with pytest.raises(UsageError) as error:
        fedseal.audit(source, out=tmp_path, **values)
    assert says in str(error.value)


def test_a_training_takes_the_same_forms(tmp_path: Path):
    run = fedseal.train(LEARNING, defences=["topk:ratio=0.9"], out=str(tmp_path / "run"))
    assert [utility.defence for utility in run.utilities] == ["none", "topk:ratio=0.9"]
    assert fedseal.open_training(str(tmp_path / "run")) == run


def test_a_trade_off_is_one_call(tmp_path: Path):
    values = LEARNING | {"defences": "topk:ratio=0.5/0.9", "attacks": "ig:iterations=2", "targets": 1}
    result = fedseal.tradeoff(values, out=str(tmp_path))
    assert [point.defence for point in result.curves[0].points][-2:] == ["topk:ratio=0.5", "topk:ratio=0.9"]
    assert fedseal.open_tradeoff(str(tmp_path)).scenario == result.scenario


# --- frames


def test_a_run_becomes_a_frame_of_images_or_of_trials(tmp_path: Path):
    run = fedseal.audit(SMALL, client={"batch_size": 2}, attacks=["ig:iterations=2", "rgap"], out=tmp_path)
    images, trials = run.frame(), run.frame(per="trial")
    assert images[["attack", "status"]].values.tolist() == [["ig:iterations=2", "ok"]] * 2 + [["rgap", "refused"]]
    assert images["psnr"].tolist()[:2] == list(run.records[0].psnr)
    assert images["baselines.nearest"].tolist()[:2] == list(run.records[0].baselines["nearest"])
    assert images["cost.bytes_up"].tolist()[0] == run.records[0].cost["bytes_up"]
    assert trials["psnr"].tolist()[0] == pytest.approx(sum(run.records[0].psnr) / 2)
    assert trials["images"].tolist() == [2, 0]
    with pytest.raises(UsageError, match="per 'pixel'"):
        run.frame(per="pixel")  # type: ignore[arg-type]


def test_a_frame_of_a_sweep_has_the_keys_that_were_swept(tmp_path: Path):
    swept = {"client.batch_size": [1, 2], "attacker.labels": [True, "identity"]}
    run = fedseal.audit(SMALL, grid=swept, out=tmp_path)
    frame = run.frame(per="trial")
    assert [name for name in frame if name.startswith("scenario.")] == [f"scenario.{key}" for key in swept]
    assert frame.groupby("scenario.client.batch_size")["images"].mean().to_dict() == {1: 1, 2: 2}
    assert not any(name.startswith("scenario.") for name in replace(run, scenarios=run.scenarios[:1]).frame())


def test_a_frame_carries_what_an_ideal_reader_gets(tmp_path: Path):
    run = fedseal.audit(SMALL, out=tmp_path)
    record = run.records[0]
    reading = ReadingRecord(key="k", scenario="audit", defence="none", target=record.target, psnr_db=21.5)
    other = reading.model_copy(update={"defence": "topk", "psnr_db": 3.0})
    assert replace(run, readings=(other, reading)).frame()["reading.psnr_db"].tolist() == [21.5]


def test_a_training_becomes_a_frame_of_rounds(tmp_path: Path):
    run = fedseal.train(LEARNING, federation={"rounds": 2}, out=tmp_path)
    frame = run.frame()
    assert frame["round"].tolist() == [0, 1]
    assert frame["bytes_up"].tolist() == [r.bytes_up for r in run.trainings[0].history.rounds]


def test_without_pandas_a_frame_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = fedseal.audit(SMALL, out=tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"fedseal\[frames\]"):
        run.frame()


# --- the names


def test_dir_is_the_interface():
    assert dir(fedseal) == sorted(fedseal.__all__)
    assert {"invert", "audit", "train", "tradeoff", "detect", "open_run"} <= set(dir(fedseal))


def test_one_s_own_attack_and_defence_are_registered_by_decorator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from fedseal.core.attack import ATTACKS
    from fedseal.core.defence import DEFENCES

    for registry in (ATTACKS, DEFENCES):
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))

    @fedseal.register_defence("half", fedseal.Info("Halves the update."))
    class Half(fedseal.Defence):
        name = "half"

        def on_update(self, update: Any, context: Any) -> Any:
            return {name: tensor / 2 for name, tensor in update.items()}

    @fedseal.register_attack("grey", fedseal.Info("Answers grey."))
    class Grey(fedseal.Attack):
        def run_many(self, observations: Any, budget: Any, seeds: Any, listener: Any = None) -> Any:
            shapes = [(one.knowledge.batch_size, *one.knowledge.input_shape) for one in observations]
            return [fedseal.Reconstruction(torch.full(s, 0.5), torch.zeros(s[0]).long(), 0.0) for s in shapes]

    run = fedseal.audit(SMALL, attacks="grey", defences="half", out=tmp_path)
    assert {record.status for record in run.records} == {"ok"}
