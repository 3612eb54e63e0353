"""The detector as a Flower mod: honest rounds pass, weapons are refused or warned of."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.detection.fingerprints import odd_ones_out
from fedseal.flower import detect
from fedseal.flower.detect import FINDINGS
from fedseal.flower.records import to_tensors
from fedseal.models.registry import build_model

DIGITS = DATASETS.build("digits")


def network() -> nn.Module:
    return build_model("lenet-relu", input_shape=DIGITS.shape, num_classes=10, seed=1)


def samples(context: Context) -> Batch:
    first = 700 * (context.node_id - 2)
    return DIGITS.batch(torch.arange(first, first + 4900, 490) % len(DIGITS))


def app(on_alarm: Any) -> ClientApp:
    client = ClientApp(mods=[detect(network, batch=samples, on_alarm=on_alarm)])

    @client.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    return client


def weapon() -> dict[str, torch.Tensor]:
    state = network().state_dict()
    state["7.weight"].zero_()
    state["7.weight"][3] = 0.5
    state["7.bias"].fill_(1000.0)
    return state


def start(grid: Any, state: dict[str, torch.Tensor]) -> Any:
    return FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=ArrayRecord(state), num_rounds=2)


def test_honest_models_are_answered_and_clients_can_compare(flower: Any) -> None:
    grid = flower.grid(app("refuse"), 3, {})
    outcome = start(grid, network().state_dict())
    assert not any(reply.has_error() for reply in grid.replies)
    assert set(to_tensors(outcome.arrays, "result")) == set(network().state_dict())
    found = {str(node): context.state.config_records[FINDINGS] for node, context in grid.contexts.items()}
    assert not any(record["suspicious"] for record in found.values())
    assert odd_ones_out({node: str(record["fingerprint"]) for node, record in found.items()}) == ()


def test_weapons_are_refused(flower: Any) -> None:
    grid = flower.grid(app("refuse"), 2, {})
    start(grid, weapon())
    assert grid.replies
    assert all(reply.has_error() and "suspicious" in reply.error.reason for reply in grid.replies)
    record = grid.contexts[2].state.config_records[FINDINGS]
    assert any("silenced classes" in alarm for alarm in record["alarms"])


def test_a_changed_architecture_is_refused_without_running_it(flower: Any) -> None:
    grid = flower.grid(app("refuse"), 2, {})
    start(grid, {f"body.{name}": value for name, value in network().state_dict().items()})
    assert all(reply.has_error() for reply in grid.replies)
    assert "fingerprint" not in grid.contexts[2].state.config_records[FINDINGS]


def test_a_warning_client_answers_all_the_same(flower: Any, caplog: pytest.LogCaptureFixture) -> None:
    grid = flower.grid(app("warn"), 2, {})
    with caplog.at_level(logging.WARNING, logger="fedseal.flower"):
        start(grid, weapon())
    assert not any(reply.has_error() for reply in grid.replies)
    assert "received a suspicious model: " in caplog.text
    with pytest.raises(UsageError, match="no reaction 'shout'"):
        detect(network, on_alarm="shout")  # type: ignore[arg-type]


def test_adapters_set_back_after_a_round_of_training_are_refused(flower: Any) -> None:
    spec = "vit-tiny:width=24,heads=2,depth=1,adapters=8"

    def adapted() -> nn.Module:
        return build_model(spec, input_shape=DIGITS.shape, num_classes=10, seed=1)

    fresh = adapted().state_dict()
    trained = fresh | {"blocks.0.adapter.up.weight": 0.01 * torch.randn(24, 8, generator=generator(0))}
    client = ClientApp(mods=[detect(adapted, batch=samples)])

    @client.train()
    def train(message: Message, context: Context) -> Message:
        first = message.content["config"]["server-round"] == 1
        answer = trained if first else fresh  # what the server sends next is set back
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": ArrayRecord(answer), "metrics": metrics}), reply_to=message)

    grid = flower.grid(client, 2, {})
    FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=ArrayRecord(fresh), num_rounds=3)
    refused = [reply.has_error() for reply in grid.replies]
    assert refused == [False] * 4 + [True] * 2
    assert "zero again" in str(grid.contexts[2].state.config_records[FINDINGS]["alarms"])
