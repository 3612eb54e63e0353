"""Fresh adapters block gradients without malice; a server that plants their zeros elsewhere is caught."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import fedseal
from fedseal.core.batch import IDENTITY, Batch
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.detection.detector import Detection
from fedseal.detection.gradients import sample_norms
from fedseal.models.registry import build_model

BATCH = Batch(
    torch.rand(8, 1, 6, 6, generator=generator(0, "images")), torch.randint(4, (8,), generator=generator(0, "labels"))
)


class Adapted(nn.Module):
    """A frozen layer with an adapter of rank 3 beside it, whose own layers may run first."""

    def __init__(self, inputs: int, outputs: int, *, adapter_first: bool) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 3, bias=False), nn.Linear(3, outputs, bias=False)
        nn.init.zeros_(self.up.weight)
        self.adapter_first = adapter_first

    def forward(self, inputs: Tensor) -> Tensor:
        if self.adapter_first:
            change = self.up(self.down(inputs))
            return change + self.base(inputs)  # type: ignore[no-any-return]
        return self.base(inputs) + self.up(self.down(inputs))  # type: ignore[no-any-return]


def adapted(*, adapter_first: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [Adapted(36, 16, adapter_first=adapter_first), nn.ReLU(), Adapted(16, 16, adapter_first=adapter_first)]
    return nn.Sequential(nn.Flatten(), *layers, nn.ReLU(), nn.Linear(16, 4))


def chain(**frozen: bool) -> nn.Sequential:
    """A plain network whose second layer is zero, with the named parts frozen."""
    torch.manual_seed(0)
    layers = {"flat": nn.Flatten(), "one": nn.Linear(36, 16), "two": nn.Linear(16, 16), "head": nn.Linear(16, 4)}
    model = nn.Sequential(OrderedDict(layers))
    nn.init.zeros_(model.get_parameter("two.weight"))
    for name in frozen:
        model.get_parameter(name.replace("_", ".")).requires_grad_(False)
    return model


def blocked(found: Detection) -> bool:
    return "blocked gradient" in {reading.check for reading in found.alarms}


@pytest.mark.parametrize("adapter_first", [False, True])
def test_fresh_adapters_are_no_alarm_and_are_noted(adapter_first: bool) -> None:
    model = adapted(adapter_first=adapter_first)
    assert not sample_norms(model, BATCH, IDENTITY).layers["1.down.weight"].any()
    found = fedseal.detect(model, BATCH)
    assert not found.alarms
    assert found.fresh
    assert "expect that in the first round alone" in found.describe()
    assert found.as_dict()["fresh"] is True


def test_trained_adapters_are_neither() -> None:
    model = adapted()
    for place in (1, 3):
        nn.init.normal_(model.get_parameter(f"{place}.up.weight"), std=0.1)
    found = fedseal.detect(model, BATCH)
    assert not found.alarms
    assert not found.fresh


@pytest.mark.parametrize("frozen", ["head_weight", "head_bias", "one_bias", "two_bias"])
def test_zeros_in_a_network_without_adapters_are_caught_whatever_is_frozen(frozen: str) -> None:
    assert blocked(fedseal.detect(chain(**{frozen: True}), BATCH))


def test_one_adapter_set_back_among_trained_ones_is_caught() -> None:
    model = adapted()
    nn.init.normal_(model.get_parameter("3.up.weight"), std=0.1)
    assert not sample_norms(model, BATCH, IDENTITY).layers["1.down.weight"].any()
    assert blocked(fedseal.detect(model, BATCH))


def test_a_body_that_was_killed_behind_fresh_adapters_is_caught() -> None:
    model = adapted()
    with torch.no_grad():
        model.get_parameter("3.base.weight").zero_()
        model.get_parameter("3.base.bias").fill_(-1.0)
    assert blocked(fedseal.detect(model, BATCH))


def test_honest_adapters_whose_rows_are_still_parallel_are_no_alarm() -> None:
    data = DATASETS.build("digits")
    model = build_model("vit-tiny:width=48,heads=2,depth=1,adapters=64", input_shape=data.shape, num_classes=10, seed=0)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    batch = data.batch(torch.arange(32))
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.inputs), batch.labels).backward()
        optimiser.step()
    found = fedseal.detect(model)
    assert {reading.layer for reading in found.alarms if reading.check == "parallel rows"} == {"blocks.0.adapter.up"}
    assert not fedseal.detect(model, batch.pick(slice(16))).alarms


@pytest.mark.parametrize("gate", [nn.ReLU(), nn.GELU(), nn.LeakyReLU(0.1), nn.Sigmoid()])
def test_parallel_rows_in_front_of_a_gate_are_caught_with_a_batch_too(gate: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 32), gate, nn.Linear(32, 4))
    with torch.no_grad():
        model.get_parameter("1.weight").copy_(20 * torch.ones(32, 36) / 36)
        model.get_parameter("1.bias").copy_(-20 * torch.linspace(0.35, 0.65, 32))
    assert "parallel rows" in {reading.check for reading in fedseal.detect(model, BATCH).alarms}
