"""The doctor: each finding appears when it should, and not otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedseal.audit.doctor import examine, told_once
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.store.findings import Finding

MODELS = """
import torch
from torch import nn

def dropout():
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 2))

def no_bias():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 2, bias=False))

def no_linear():
    return nn.Sequential(nn.Conv2d(1, 2, 8), nn.Flatten())

def pooled():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 2))

class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return x * self.factor

def dead():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2), Scale(0.0))

def half_dead():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Scale(0.0), nn.Linear(8, 2))

class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        return -gradient

class Reversed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    def forward(self, x):
        return Reverse.apply(self.layers(x))

class Exploding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    def forward(self, x):
        x = self.layers(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: {}["boom"])
        return x

class Vector(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture(autouse=True, scope="module")
def _models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("models")
    (directory / "doctor_test_nets.py").write_text(MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        yield


def examined(model: str = "lenet:init=wide-uniform", data: str = "faces:size=8", **values: Any) -> dict[str, Finding]:
    model = f"doctor_test_nets:{model}" if not model.startswith(("lenet", "convnet", "resnet")) else model
    scenario = Scenario.model_validate({"data": data, "model": model, "attacks": ["ig"], "targets": 4} | values)
    found = examine(build_setup(scenario))
    assert all(finding.text and finding.advice for finding in found)
    return {finding.topic: finding for finding in found if finding.topic != "strangers" or finding.severity != "note"}


def test_findings_of_many_scenarios_are_told_once_with_where():
    everywhere = Finding(severity="note", topic="labels", text="repeat.")
    one = Finding(severity="warning", topic="dropout", text="is active.")
    two = Finding(severity="problem", topic="sign", text="is reversed.")
    found = {"a": [everywhere], "b": [one, everywhere], "c": [everywhere, two], "d": [two, everywhere]}
    assert list(told_once(found)) == [(everywhere, ""), (one, " (in b)"), (two, " (in 2 of 4 scenarios)")]
    assert list(told_once({"alone": [one]})) == [(one, "")]
    assert list(told_once({})) == []


def test_a_sound_set_up_gets_no_remark():
    assert examined() == {}
    assert (
        examined(client={"local_steps": 3, "learning_rate": 0.01}, attacker={"labels": "true"}, data="digits:size=8")
        == {}
    )


def test_dropout_is_found_where_it_is_active():
    assert examined("dropout", client={"train_mode": True})["dropout"].severity == "warning"
    assert "dropout" not in examined("dropout")


@pytest.mark.parametrize("seed", range(5))
def test_dropout_does_not_look_like_a_wrong_sign(seed: int):
    assert list(examined("dropout", client={"train_mode": True, "batch_size": 8}, seed=seed)) == ["dropout", "labels"]


def test_batch_normalisation_by_mode_and_batch():
    topic = "batch normalisation"
    convnet = {"model": "convnet:width=1", "data": "faces:size=16"}
    assert "eval mode" in examined(**convnet)[topic].text
    assert "single image" in examined(**convnet, client={"bn_mode": "train-nostats"})[topic].text
    assert topic not in examined(**convnet, client={"bn_mode": "train-nostats", "batch_size": 2})
    assert topic not in examined(client={"bn_mode": "train-nostats"})


@pytest.mark.parametrize(("client", "attacker"), [("mean", "sum"), ("sum", "mean")])
def test_a_loss_reduction_the_attacker_gets_wrong_is_a_problem(client: str, attacker: str):
    finding = examined(client={"loss_reduction": client}, attacker={"loss_reduction": attacker})["loss reduction"]
    assert finding.severity == "problem"
    assert f"`{client}`" in finding.text
    assert "loss reduction" not in examined(client={"loss_reduction": client}, attacker={"loss_reduction": client})


def test_vanishing_gradients_in_all_or_some_layers():
    assert examined("dead", attacker={"labels": "true"})["vanishing gradients"].severity == "problem"
    some = examined("half_dead")["vanishing gradients"]
    assert some.severity == "warning"
    assert "of 4 tensors" in some.text
    assert "'1.weight'" in some.text


def test_more_images_than_classes():
    assert "3 images of 2 classes" in examined(client={"batch_size": 3})["labels"].text
    assert "4 images of 2 classes" in examined(client={"batch_size": 1, "local_steps": 4})["labels"].text
    assert "labels" not in examined(client={"batch_size": 2})


def test_a_last_layer_without_bias_or_without_being_linear():
    assert examined("no_bias")["last layer"].severity == "warning"
    assert examined("no_linear")["last layer"].severity == "problem"
    for rule in ("true", "unknown"):
        assert "last layer" not in examined("no_bias", attacker={"labels": rule})
        assert "last layer" not in examined("no_linear", attacker={"labels": rule})


def test_kinks_where_an_attack_uses_second_derivatives():
    topic = "ReLU with L-BFGS"
    assert "idlg" in examined("lenet-relu", attacks=["ig", "idlg"])[topic].text
    assert topic in examined("pooled", attacks=["idlg"])
    assert topic not in examined("lenet-relu", attacks=["ig"])
    assert topic not in examined("lenet", attacks=["idlg"])


def test_an_update_of_the_wrong_sign_is_a_problem():
    assert examined("Reversed")["gradient sign"].severity == "problem"
    delta = {"local_steps": 2, "learning_rate": 0.01}
    assert "gradient sign" in examined("Reversed", client=delta)
    assert "gradient sign" not in examined("no_bias", client=delta)


def test_half_precision_is_remarked():
    assert examined(client={"dtype": "float16"})["float16"].severity == "warning"
    assert "float16" not in examined(client={"dtype": "float64"})


def test_a_client_round_that_breaks_is_told_not_raised():
    finding = examined("Exploding")["client round"]
    assert finding.severity == "problem"
    assert "KeyError" in finding.text
    alone = examined("Vector", client={"bn_mode": "train-nostats"})["client round"]  # PyTorch refuses a single value
    assert "more than 1 value per channel" in alone.text


def test_the_worst_comes_first():
    found = examined("no_bias", client={"loss_reduction": "sum", "batch_size": 3}, attacker={"loss_reduction": "mean"})
    assert [finding.severity for finding in found.values()] == ["problem", "warning", "note"]


def test_examining_changes_nothing():
    scenario = Scenario(
        data="faces:size=16",
        model="convnet:width=1",
        targets=1,
        client={"bn_mode": "train-nostats", "batch_size": 2},  # type: ignore[arg-type]
    )
    setup = build_setup(scenario)
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    state = torch.get_rng_state()
    examine(setup)
    assert all(torch.equal(before[name], value) for name, value in setup.model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_layers_that_leak_exactly_are_told_before_any_attack():
    setup = build_setup(Scenario(data="faces:size=8", model="mlp:width=32", client={"batch_size": 3}, targets=1))
    told = [finding.text for finding in examine(setup) if finding.topic == "exact leak"]
    assert any("rank 3 for 3 sample(s)" in text and "`spear` takes it apart exactly" in text for text in told)
    assert any("the samples themselves" in text for text in told)
    smooth = build_setup(Scenario(data="faces:size=8", model="mlp:width=32,activation=sigmoid", targets=1))
    assert not [finding for finding in examine(smooth) if finding.topic == "exact leak"]


def test_rows_of_embeddings_are_told_for_what_they_name():
    setup = build_setup(
        Scenario(data="text:notes?length=12&limit=60", model="text-encoder:width=8,layers=1", targets=1)
    )
    told = [finding.text for finding in examine(setup) if finding.topic == "exact leak"]
    assert any("words.weight" in text and "exactly the tokens of the batch" in text for text in told)
    assert any("positions.weight" in text and "exactly the places that a text" in text for text in told)
