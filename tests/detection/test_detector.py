"""The detector: silent on honest models, loud on every active attack, and each check against a model made for it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import fedseal
from fedseal.attacks.active.trap_weights import Trap
from fedseal.audit.scenario import validate_scenario
from fedseal.audit.setup import build_setup
from fedseal.cli import app
from fedseal.core.attack import ATTACKS, Ask, Attack, Budget, Listener
from fedseal.core.batch import IDENTITY, Batch
from fedseal.core.defence import Defence
from fedseal.core.errors import InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.detection import weights
from fedseal.detection.death import OUTWEIGHED, outweighed
from fedseal.detection.detector import Detection
from fedseal.detection.fingerprints import fingerprint, odd_ones_out
from fedseal.detection.gradients import ratio, sample_norms
from fedseal.detection.readings import CHECKS, MEANINGS, THRESHOLDS
from fedseal.federation.client import sample_gradients
from fedseal.federation.fitting import fitting_model
from fedseal.federation.loss import cross_entropy_loss
from fedseal.models.checkpoint import save_checkpoint
from fedseal.models.registry import build_model

MODELS = ("mlp", "lenet", "lenet-relu", "convnet:width=4", "resnet10:width=4", "vit-tiny:width=24,depth=1")
VICTIMS = ("mlp", "lenet-relu", "resnet10:width=4", "vit-tiny:width=24,depth=1")


class Watching(Attack):
    """Lets an attack send its models, and keeps them."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack
        self.sent: list[Sequence[nn.Module]] = []

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        def watched(models: Sequence[nn.Module]) -> Observation:
            self.sent.append(models)
            return ask(models)

        return self.attack.provoke(model, knowledge, watched, seed)

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        return self.attack.run_many(observations, budget, seeds, listener)


def attacked(attack: str, model: str, seed: int = 0, **client: Any) -> tuple[list[Sequence[nn.Module]], Batch]:
    """Return every model an attack sent to eight digits of each client, and the digits."""
    values = {"data": "digits", "model": model, "targets": 1, "seed": seed, "client": {"batch_size": 8, **client}}
    setup = build_setup(validate_scenario(values, source="test"))
    watching = Watching(ATTACKS.build(attack))
    target = setup.observe(Defence(), 0, attack=watching, seed=seed)
    return watching.sent, target.originals


def alarms(found: Detection) -> set[str]:
    return {reading.check for reading in found.alarms}


@pytest.mark.parametrize("model", VICTIMS)
@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ("imprint", "parallel rows"),
        ("imprint:sparse=true,statistic=random", "parallel rows"),
        ("imprint:statistic=fourier,gain=1", "parallel rows"),
        ("cah", "even signs"),
        ("loki", "bare kernels"),
        ("fishing", "silenced classes"),
    ],
)
def test_every_attack_is_flagged_at_its_default(attack: str, expected: str, model: str) -> None:
    sent, batch = attacked(attack, model)
    assert expected in alarms(fedseal.detect(sent[-1][0], batch))
    if attack != "fishing":  # whose weights give it away only beside the data
        assert fedseal.detect(sent[-1][0]).suspicious


@pytest.mark.parametrize("model", VICTIMS)
def test_suppressed_clients_notice_and_the_target_can_compare(model: str) -> None:
    sent, images = attacked("suppression", model, aggregate=3)
    target, silenced, _ = sent[0]
    batch = Batch(images.images[8:16], images.labels[8:16])
    assert "blocked gradient" in alarms(fedseal.detect(silenced, batch))
    assert not fedseal.detect(target, batch).suspicious  # it is the honest model
    prints = {f"client-{index}": fingerprint(model) for index, model in enumerate(sent[0])}
    assert odd_ones_out(prints) == ("client-0",)


def test_lokis_models_differ_between_clients() -> None:
    sent, _ = attacked("loki", "lenet-relu", aggregate=3)
    prints = {str(index): fingerprint(model) for index, model in enumerate(sent[0])}
    assert odd_ones_out(prints) == ("0", "1", "2")


@pytest.mark.parametrize("name", MODELS)
def test_honest_models_are_not_flagged_before_or_after_training(name: str) -> None:
    data = DATASETS.build("faces:size=24")
    model = build_model(name, input_shape=data.shape, num_classes=len(data.classes), seed=7)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    source = generator(7, "order")
    batch = data.batch(torch.randperm(len(data), generator=source)[:16])
    assert not alarms(fedseal.detect(model, batch))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(25):
        step = data.batch(torch.randperm(len(data), generator=source)[:16])
        loss = F.cross_entropy(model(step.images), step.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert not alarms(fedseal.detect(model, batch))
    assert not alarms(fedseal.detect(model.eval(), batch))


def test_peftleak_is_flagged_and_what_it_alters_is_not_when_it_is_honest() -> None:
    sent, batch = attacked("peftleak:bins=8", "vit-tiny:width=48,heads=2,depth=2,adapters=64")
    found = {reading.check: reading for reading in fedseal.detect(sent[-1][0], batch).alarms}
    assert "identity products" in found
    assert found["parallel rows"].value == pytest.approx(1.0)
    assert "identity products" in alarms(fedseal.detect(sent[-1][0]))
    honest = build_model(
        "vit-tiny:width=48,heads=2,depth=2,adapters=64", input_shape=(1, 28, 28), num_classes=10, seed=0
    )
    assert not alarms(fedseal.detect(honest, batch))
    with torch.no_grad():
        honest.get_parameter("blocks.0.adapter.up.weight").normal_(std=0.01)
    assert not alarms(fedseal.detect(honest, batch))


@pytest.mark.slow  # importing peft takes seconds
def test_fresh_lora_adapters_are_no_alarm_and_a_silenced_adapted_model_is() -> None:
    peft = pytest.importorskip("peft")
    data = DATASETS.build("text:notes?length=16&limit=60")
    model = fitting_model("text-encoder:width=32", data, "cross-entropy", 0)
    settings = peft.LoraConfig(r=4, target_modules=["query", "key", "value"], modules_to_save=["head"])
    adapted = peft.get_peft_model(model, settings).base_model.model
    batch = data.batch(torch.arange(8))
    assert not alarms(fedseal.detect(adapted, batch))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "head" in name:
                parameter.zero_()
    assert "blocked gradient" in alarms(fedseal.detect(adapted, batch))


def test_queries_and_keys_of_one_rotated_basis_are_found() -> None:
    drawn = torch.randn(3, 48, 48, generator=generator(0, "squares"), dtype=torch.float64)
    basis, other, _ = (torch.linalg.qr(square).Q for square in drawn)
    assert weights.identity_products([100 * basis, basis]) == pytest.approx(1.0)
    assert (weights.identity_products([basis, other]) or 1) < 0.2
    assert (weights.identity_products(list(drawn)) or 1) < 0.2
    assert weights.identity_products([basis, torch.zeros(48, 48)]) is None
    assert weights.identity_products([basis]) is None


def test_a_network_that_died_in_training_is_noted_and_no_alarm() -> None:
    data = DATASETS.build("faces:size=24")
    model = build_model("lenet-relu", input_shape=data.shape, num_classes=len(data.classes), seed=0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    source = generator(0, "order")
    batch = data.batch(torch.randperm(len(data), generator=source)[:16])
    for _ in range(60):
        if fedseal.detect(model, batch).died_at is not None:
            break
        step = data.batch(torch.randperm(len(data), generator=source)[:16])
        loss = F.cross_entropy(model(step.images), step.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = fedseal.detect(model, batch)
    assert found.died_at is not None
    assert not sample_norms(model, batch, IDENTITY).layers["0.weight"].any()
    assert "blocked gradient" not in alarms(found)
    assert "nothing of these images leaks" in found.describe()
    assert found.as_dict()["died_at"] == found.died_at


@pytest.mark.parametrize("weight", ["zero", "noise", "honest"])
def test_a_layer_killed_by_its_biases_is_an_alarm_whatever_its_weights(weight: str) -> None:
    data = DATASETS.build("digits")
    model = build_model("lenet-relu", input_shape=data.shape, num_classes=10, seed=0)
    with torch.no_grad():
        layer = model[2]
        if weight == "zero":
            layer.weight.zero_()
        elif weight == "noise":
            layer.weight.normal_(generator=generator(0, "noise")).mul_(0.01)
        layer.bias.fill_(-100.0)
    assert outweighed(layer.weight, layer.bias) > OUTWEIGHED
    found = fedseal.detect(model, data.batch(torch.arange(0, 5000, 400)))
    assert "blocked gradient" in alarms(found)
    assert found.died_at is None


def test_biases_are_weighed_against_weights() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 2.0], [6.0, 8.0]])
    assert outweighed(rows, torch.tensor([-5.0, 1.0, 20.0])) == pytest.approx(1.0)
    assert outweighed(rows, None) == 0.0
    assert outweighed(torch.zeros(3, 2), torch.ones(3)) == math.inf
    assert outweighed(torch.zeros(3, 2), None) == math.inf


def test_a_model_that_lets_one_sample_through_one_direction_is_flagged() -> None:
    data = DATASETS.build("digits")
    model = build_model("convbn", input_shape=data.shape, num_classes=10, seed=0).train()
    batch = data.batch(torch.arange(0, 5000, 400))
    assert "single direction" not in alarms(fedseal.detect(model, batch))
    source = generator(0, "head")
    with torch.no_grad():
        shape = model[-1].weight.shape
        model[-1].weight.copy_(torch.randn(shape[0], 1, generator=source) * torch.randn(1, shape[1], generator=source))
        model[10].bias.fill_(-3.0)  # few features are left, of few samples
    assert "single direction" in alarms(fedseal.detect(model, batch))
    assert "single direction" not in {reading.check for reading in fedseal.detect(model).readings}


def test_dsnr_is_the_top_norm_over_the_sum_of_the_rest() -> None:
    data = DATASETS.build("digits")
    model = build_model("lenet-relu", input_shape=data.shape, num_classes=10, seed=0)
    batch = data.batch(torch.arange(0, 5000, 700))
    norms = sample_norms(model, batch, data.normalisation)
    each = sample_gradients(model, batch, cross_entropy_loss(data.normalisation, "mean"))
    for name, found in norms.layers.items():
        expected = each[name].flatten(1).norm(dim=1)
        assert torch.allclose(found.float(), expected, rtol=1e-4)
        top = float(expected.max())
        assert norms.dsnr()[name] == pytest.approx(top / (float(expected.sum()) - top), rel=1e-3)
    assert ratio(torch.tensor([3.0, 1.0, 2.0])) == 1.0
    assert ratio(torch.tensor([3.0, 0.0])) == math.inf
    assert ratio(torch.zeros(3)) == 0.0


def test_batch_statistics_are_those_of_the_whole_batch() -> None:
    data = DATASETS.build("digits")
    model = build_model("resnet10:width=4", input_shape=data.shape, num_classes=10, seed=0).train()
    batch = data.batch(torch.arange(0, 5000, 700))
    norms = sample_norms(model, batch, data.normalisation)
    logits = model(data.normalisation(batch.images))
    loss = F.cross_entropy(logits[2:3], batch.labels[2:3])
    own = torch.autograd.grad(loss, model.get_parameter("fc.weight"))[0]
    assert float(norms.layers["fc.weight"][2]) == pytest.approx(float(own.norm()), rel=1e-4)


def test_parallel_rows_need_different_biases() -> None:
    source = generator(0, "rows")
    honest = torch.randn(64, 100, generator=source)
    bias = torch.randn(64, generator=source)
    low = weights.parallel_rows(honest, bias)
    assert low is not None
    assert low < 0.6
    binned = honest.clone()
    binned[10:20] = honest[10]
    assert weights.parallel_rows(binned, bias) == pytest.approx(1.0)
    same = weights.parallel_rows(binned, torch.zeros(64))
    assert same is not None
    assert same < 0.6
    assert weights.parallel_rows(honest[:4], bias[:4]) is None
    assert weights.parallel_rows(binned, None) is None


def test_trap_weights_are_told_from_chance() -> None:
    trap = Trap.draw(256, 784, 0.5, generator(0, "trap")).weights(0.95)
    honest = torch.randn(256, 784, generator=generator(1, "rows"))
    assert weights.even_signs(trap) == pytest.approx(1.0)
    assert abs(weights.even_signs(honest) or 0) < 0.2
    assert (weights.balanced_rows(trap) or 0) > 50
    assert (weights.balanced_rows(honest) or 0) < 5
    few = honest.clone()
    few[:25] = trap[:25].float()  # a tenth of the rows
    assert (weights.balanced_rows(few) or 0) > THRESHOLDS["balanced rows"]
    assert weights.balanced_rows(torch.zeros(64, 64)) is None


def test_kernels_and_heads() -> None:
    kernels = torch.zeros(6, 27)
    kernels[2, 4] = kernels[3, 13] = 500.0
    assert weights.bare_kernels(kernels) == pytest.approx(1.0)
    assert (weights.bare_kernels(torch.randn(6, 27, generator=generator(0, "k"))) or 0) < 0.5
    assert weights.bare_kernels(torch.zeros(6, 27)) is None
    assert weights.bare_kernels(torch.ones(6, 4)) is None
    head = torch.zeros(10, 30)
    assert weights.silenced_classes(head) is None
    head[4] = 0.5
    assert weights.silenced_classes(head) == 1.0
    assert weights.outsized(torch.tensor([[1e3, 0.0]])) == pytest.approx(3.0)


def test_a_last_layer_that_serves_one_sample() -> None:
    source = generator(0, "head")
    spread = torch.randn(10, 30, generator=source)
    one_way = torch.randn(10, 1, generator=source) * torch.randn(1, 30, generator=source)
    even = F.normalize(torch.randn(8, 30, generator=source), dim=1)
    alone = even * torch.tensor([1.0, *[0.1] * 7])[:, None]
    assert weights.single_direction(one_way, alone) == pytest.approx(0.9)
    assert weights.single_direction(one_way, even) == pytest.approx(0.0, abs=1e-6)
    assert (weights.single_direction(spread, alone) or 1) < 0.3
    assert weights.single_direction(spread[:4], alone) is None
    assert weights.single_direction(spread, alone[:3]) is None
    assert weights.single_direction(torch.ones(10, 30), alone) is None


def test_every_check_has_a_threshold_and_a_meaning() -> None:
    assert set(THRESHOLDS) == set(MEANINGS) == set(CHECKS)


def test_thresholds_can_be_moved_and_findings_read() -> None:
    model = build_model("mlp", input_shape=(1, 8, 8), num_classes=2, seed=0)
    strict = fedseal.detect(model, thresholds={"outsized weights": -5.0})
    assert alarms(strict) == {"outsized weights"}
    assert "do not answer" in strict.describe()
    assert "ALARM  outsized weights" in strict.describe()
    plain = json.loads(json.dumps(strict.as_dict()))
    assert plain["suspicious"] is True
    assert {entry["check"] for entry in plain["readings"]} <= set(CHECKS)
    assert "nothing suspicious" in fedseal.detect(model).describe()


def test_wrong_input_is_said() -> None:
    model = build_model("mlp", input_shape=(1, 8, 8), num_classes=2, seed=0)
    with pytest.raises(InputError, match="the batch is empty"):
        fedseal.detect(model, Batch(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.long)))
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan  # type: ignore[index, union-attr]
    with pytest.raises(InputError, match="NaN or infinite"):
        fedseal.detect(model)
    with pytest.raises(InputError, match="no fingerprints"):
        odd_ones_out({})
    assert odd_ones_out({"a": "x", "b": "x"}) == ()


def test_the_command_line_answers_with_an_exit_code(tmp_path: Path) -> None:
    run = CliRunner()
    honest = run.invoke(app, ["detect", "--model", "lenet-relu", "--data", "digits"])
    assert honest.exit_code == 0, honest.output
    assert "nothing suspicious was found" in honest.output
    sent, _ = attacked("fishing:target=3", "lenet-relu")
    save_checkpoint(sent[-1][0], tmp_path / "received.safetensors")
    arguments = ["detect", "--model", "lenet-relu", "--checkpoint", str(tmp_path / "received.safetensors")]
    weapon = run.invoke(app, [*arguments, "--data", "digits"])
    assert weapon.exit_code == 1
    assert "ALARM  silenced classes" in weapon.output
    as_json = run.invoke(app, [*arguments, "--data", "digits", "--json"])
    assert json.loads(as_json.output)["suspicious"] is True
    alone = run.invoke(app, ["detect", "--model", "mlp", "--input-shape", "1,28,28", "--classes", "10"])
    assert alone.exit_code == 0
    assert run.invoke(app, ["detect", "--model", "mlp"]).exit_code != 0
    assert run.invoke(app, ["detect", "--model", "mlp", "--input-shape", "1,2", "--classes", "2"]).exit_code != 0
