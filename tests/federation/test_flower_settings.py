"""What an app leaves open, the run's configuration says: for every mod, in its own words, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.errors import UsageError
from fedseal.federation.update_file import read_updates
from fedseal.flower import detect, guard, monitor, record
from fedseal.flower.envelope import ENVELOPE
from fedseal.flower.monitoring import rules_of_run


@pytest.fixture(autouse=True)
def _identity(flower: Any) -> None:
    """Messages need a task, which the fixture's runtime sets."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


def context(**config: Any) -> Context:
    named = {name.replace("_", "-"): value for name, value in config.items()}
    return Context(run_id=1, node_id=5, node_config={}, state=RecordDict(), run_config=named)


def asked(state: dict[str, torch.Tensor] | None = None) -> Message:
    arrays = ArrayRecord(net().state_dict() if state is None else state)
    message = Message(RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})}), 5, "train")
    message.metadata.__dict__["_message_id"] = "m"
    return message


def train(message: Message, context: Context) -> Message:
    state = {name: tensor + 0.1 for name, tensor in net().state_dict().items()}
    return Message(
        RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 2})}), reply_to=message
    )


def weapon() -> dict[str, torch.Tensor]:
    return {"strange": torch.ones(3)}


def test_a_run_may_have_suspicious_models_warned_of_where_the_app_leaves_it_open():
    assert detect(net)(asked(weapon()), context(), train).has_error()
    assert not detect(net)(asked(weapon()), context(detect_on_alarm="warn"), train).has_error()
    assert detect(net, on_alarm="refuse")(asked(weapon()), context(detect_on_alarm="warn"), train).has_error()


@pytest.mark.parametrize(
    ("mod", "config", "words"),
    [
        (lambda: detect(net), {"detect_on_alarm": "shrug"}, "no reaction 'shrug'"),
        (lambda: detect(net), {"detect_onalarm": "warn"}, "detect-onalarm is no setting"),
        (lambda: record(), {"record": "x", "record_batch_size": 0}, "cannot be recorded"),
        (lambda: record(), {"record": "x", "record_client": "me"}, "record-client is no setting"),
        (lambda: monitor(net, lambda *_: [], batch()), {"watch_every": 0}, "every"),
        (lambda: monitor(net, lambda *_: [], batch()), {"watch_rules": "[{if: x, then: refuse}]"}, "reads like"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_in_words(mod: Any, config: dict[str, Any], words: str):
    reply = mod()(asked(), context(**config), train)
    assert reply.has_error()
    assert words in str(reply.error.reason)


def batch() -> Batch:
    return Batch(torch.rand(8, 1, 4, 4), torch.arange(8) % 4)


def test_a_run_says_where_updates_are_recorded_and_with_which_facts(tmp_path: Path):
    assert not record()(asked(), context(record=""), train).has_error()
    mod = record(batch_size=2)
    assert not mod(asked(), context(record=str(tmp_path), record_learning_rate=0.5), train).has_error()
    facts = read_updates(tmp_path)[0].facts
    assert (facts.batch_size, facts.learning_rate) == (2, 0.5)


def test_a_run_says_how_often_and_what_a_watch_reads():
    rules = rules_of_run({"watch-every": 3, "watch-readings": "labels, ideal", "watch-tell": False, "other": 1})
    assert (rules.every, rules.readings, rules.tell) == (3, ("labels", "ideal"), False)
    told = rules_of_run({"watch-rules": '[{if: "ideal >= medium", then: raise sigma, by: 3}]'}).rules
    assert (told[0].then, told[0].by) == ("raise sigma", 3)
    mod = monitor(net, lambda *_: [batch()], batch(), agrees=True)
    quiet = mod(asked(), context(watch_readings="labels", watch_tell=False), train)
    heard = mod(asked(), context(watch_readings="labels"), train)
    assert ENVELOPE not in quiet.content.config_records
    assert "cost-labels" in heard.content.config_records[ENVELOPE]


def test_a_run_says_how_far_a_reply_may_move_the_model_where_the_server_leaves_it_open(tmp_path: Path):
    run = {"guard-max-norm": 0.5, "guard-outlier": 0, "guard-learning-rate": 0.1, "record": str(tmp_path)}
    open_one = guard(FedAvg(), recorder=record(), run_config=run)
    assert (open_one._limits.max_norm, open_one._limits.outlier, open_one._learning_rate) == (0.5, None, 0.1)
    closed = guard(FedAvg(), max_norm=2.0, outlier=3.0, run_config=run)
    assert (closed._limits.max_norm, closed._limits.outlier) == (2.0, 3.0)
    with pytest.raises(UsageError, match="guard-max-norm is 'much', not a number"):
        guard(FedAvg(), run_config={"guard-max-norm": "much"})
    with pytest.raises(UsageError, match="guard-maxnorm is no setting"):
        guard(FedAvg(), run_config={"guard-maxnorm": 1.0})
