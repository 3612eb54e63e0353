"""`monitor` as a Flower mod: with real messages, contexts, mods and a guarded strategy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedseal.core.batch import Batch
from fedseal.federation.client import RoundConfig
from fedseal.flower import defend, guard, monitor
from fedseal.flower.envelope import ENVELOPE
from fedseal.flower.records import read_reply
from fedseal.watch.export import JsonLines

RATE = 0.1


@pytest.fixture(autouse=True)
def _identity(flower: Any) -> None:
    """Messages need a task, which the fixture's runtime sets."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def private(*_: Any) -> list[Batch]:
    return [Batch(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 7]))]


PUBLIC = Batch(torch.rand(80, 1, 8, 8, generator=torch.Generator().manual_seed(2)), torch.arange(80) % 10)


def train(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batch = private()[0]
    nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= RATE * parameter.grad
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 2})})
    return Message(content, reply_to=message)


def watching(**options: Any) -> Any:
    return monitor(net, private, PUBLIC, config=RoundConfig(learning_rate=RATE), **options)


def context() -> Context:
    return Context(run_id=1, node_id=5, node_config={}, state=RecordDict(), run_config={})


def asked(number: int = 1) -> Message:
    content = RecordDict({"arrays": ArrayRecord(net().state_dict()), "config": ConfigRecord({"server-round": number})})
    message = Message(content, 5, "train")
    message.metadata.__dict__["_message_id"] = f"m{number}"
    return message


def costs(reply: Message) -> dict[str, float]:
    assert not reply.has_error(), reply.error.reason
    record = reply.content.config_records[ENVELOPE]
    return {name.removeprefix("cost-"): value for name, value in record.items() if name.startswith("cost-")}


def test_an_update_that_gives_its_images_away_is_refused_by_a_rule(caplog: pytest.LogCaptureFixture):
    mod = watching(rules={"rules": [{"if": "ideal >= high", "then": "refuse"}]})
    reply = mod(asked(), context(), train)
    assert reply.error.code == 451
    assert "watch refused" in str(reply.error.reason)
    assert "calls for refuse" in caplog.text


def test_a_sealed_update_leaves_with_its_readings(tmp_path: Path):
    mod = watching(
        sinks=[JsonLines(tmp_path / "readings.jsonl")], rules={"rules": [{"if": "ideal >= high", "then": "refuse"}]}
    )
    seal = defend("gaussian:sigma=0.5,clip=1.0", seed=0)
    reply = mod(asked(), context(), lambda m, c: seal(m, c, train))
    found = costs(reply)
    assert found["ideal-level"] == 0.0
    assert found["ideal"] < 15
    assert found["watch-seconds"] > 0
    assert json.loads((tmp_path / "readings.jsonl").read_text())["fedseal-ideal"] == found["ideal"]


@pytest.mark.parametrize("encoding", ["weights", "wire"])
def test_raised_noise_is_on_this_update_and_on_all_that_follow(encoding: Any):
    rules = {
        "every": 1,
        "overhead": 1000,
        "readings": ["ideal"],
        "rules": [{"if": "ideal >= medium", "then": "raise sigma", "by": 5}],
    }
    mod, own, seal = watching(rules=rules, seed=0), context(), defend("topk:ratio=0.2", encoding=encoding, seed=0)
    plain = read_reply(seal(asked(), context(), train).content, net().state_dict()).update.tensors
    distances = []
    for number in range(1, 7):
        reply = mod(asked(number), own, lambda m, c: seal(m, c, train))
        sent = read_reply(reply.content, net().state_dict()).update.tensors
        distances.append(float(sum((sent[n] - plain[n]).square().sum() for n in plain)) ** 0.5)
        assert all(bool((sent[name][plain[name] == 0] == 0).all()) for name in plain)
    assert distances[0] > 0
    assert distances[1] > distances[0]
    assert distances[-1] > distances[0]


def test_who_does_not_agree_is_not_read_and_other_messages_pass():
    reply = watching(agrees=False)(asked(), context(), train)
    assert ENVELOPE not in reply.content.config_records
    message = Message(RecordDict(), 5, "evaluate")
    answered = Message(RecordDict(), reply_to=message)
    assert watching()(message, context(), lambda *_: answered) is answered


def test_rounds_are_the_clients_own_count_whatever_the_server_says():
    mod, own = watching(rules={"every": 3, "overhead": 1000, "readings": ["labels"]}), context()
    told = [ENVELOPE in mod(asked(1), own, train).content.config_records for _ in range(7)]
    assert told == [True, False, False, True, False, False, True]


def test_a_guarded_server_reports_readings_of_the_clients_that_were_read(flower: Any):
    app = ClientApp(mods=[watching(rules={"every": 2, "overhead": 1000}), defend("gaussian:sigma=0.5", seed=0)])
    app.train()(train)
    server, outcome = ServerApp(), {}

    @server.main()
    def main(grid: Any, context: Context) -> None:
        strategy = guard(FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2))
        done = strategy.start(grid=grid, initial_arrays=ArrayRecord(net().state_dict()), num_rounds=2)
        outcome["metrics"], outcome["dropped"] = done.train_metrics_clientapp, strategy.dropped

    flower.run(server, flower.grid(app, 2))
    assert outcome["dropped"] == []
    assert "fedseal-ideal" in outcome["metrics"][1]
    assert "fedseal-ideal" not in outcome["metrics"][2]
