"""Bytes that sealed clients report are the bytes that leave: beside Flower's own objects, and at a proxy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from torch import nn

from fedseal.core.batch import Batch
from fedseal.federation.client import RoundConfig
from fedseal.flower import defend, train_round

from .deployment import Deployment, wait_for
from .proxy import CountingProxy

HEAD = 839
"""Of an HTTP request of a SuperNode, with its key, time and signature."""


def sent(state: dict[str, torch.Tensor], encoding: Any) -> Message:
    request = RecordDict({"arrays": ArrayRecord(state), "config": ConfigRecord({"server-round": 1})})
    message = Message(request, 2, "train")
    message.metadata.__dict__["_message_id"] = "a" * 64

    def train(message: Message, context: Context) -> Message:
        moved = {name: tensor + torch.randn(tensor.shape) for name, tensor in state.items()}
        content = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 600})}
        return Message(RecordDict(content), reply_to=message)

    return defend("topk:ratio=0.9", encoding=encoding)(message, Context(2, 2, {}, RecordDict(), {}), train)


@pytest.mark.parametrize("encoding", ["weights", "wire"])
@pytest.mark.parametrize(
    "shapes", [[(10, 10)], [(6, 1, 5, 5), (6,), (100, 200), (100,), (10, 100), (10,)], [(1200, 1500), (10,)]]
)
def test_reported_bytes_are_those_of_all_objects_that_flower_sends(flower: Any, shapes: Any, encoding: str):
    reply = sent({f"layer{n}.weight": torch.zeros(shape) for n, shape in enumerate(shapes)}, encoding)
    objects = get_all_nested_objects(reply)
    node, run = Node(node_id=2**63), 2**63
    bodies = [
        PushObjectRequest(node=node, run_id=run, object_id=key, object_content=one.deflate(), session_id="s" * 32)
        for key, one in objects.items()
    ]
    all_bytes = sum(HEAD + body.ByteSize() for body in bodies) + HEAD + get_object_tree(reply).ByteSize() + 230
    assert reply.content["fedseal"]["cost-bytes-up"] == pytest.approx(all_bytes, rel=0.015)


def test_a_sparse_gradient_from_inside_of_training_travels_as_small_as_a_sparse_change(flower: Any):
    """Minus zero is not zero to a lossless codec: one step's gradient used to leave dense."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 400))
    request = RecordDict({"arrays": ArrayRecord(model.state_dict()), "config": ConfigRecord({"server-round": 1})})

    def train(message: Message, context: Context) -> Message:
        batch = Batch(torch.rand(4, 1, 8, 8), torch.arange(4))
        weights = train_round(model, [batch], RoundConfig()).weights
        content = {"arrays": ArrayRecord(weights), "metrics": MetricRecord({"num-examples": 4})}
        return Message(RecordDict(content), reply_to=message)

    mod = defend("topk:ratio=0.99", inside=True, encoding="wire")
    reply = mod(Message(request, 2, "train"), Context(2, 2, {}, RecordDict(), {}), train)
    dense = sum(4 * tensor.numel() for tensor in model.state_dict().values())
    assert reply.content["fedseal"]["cost-bytes-payload"] < 0.1 * dense


@pytest.fixture
def deployment(tmp_path: Path, examples: Path) -> Iterator[Deployment]:
    home = tmp_path / "flwr"
    home.mkdir()
    deployed = Deployment(home, examples / "flower")
    yield deployed
    deployed.stop()


@pytest.mark.slow
def test_reported_bytes_are_those_a_proxy_before_the_superlink_counts(deployment: Deployment, tmp_path: Path):
    deployment.superlink()
    proxy = CountingProxy(deployment.port)
    deployment.supernode(0, port=proxy.port)
    wait_for(lambda: len(deployment.online()) == 1, 180, "the registration of the SuperNode")
    for encoding in ("weights", "wire"):
        before, result = proxy.replied, tmp_path / f"{encoding}.json"
        run = deployment.run(
            f'defence="topk:ratio=0.9" encoding="{encoding}" num-server-rounds=2 min-clients=1 local-steps=1 '
            f'batch-size=4 result="{result}"'
        )
        wait_for(lambda run=run: deployment.status(run).startswith("finished"), 400, "the end of the run")
        reported = sum(costs["fedseal-bytes-up"] for costs in json.loads(result.read_text())["costs"].values())
        counted = proxy.replied - before
        print(f"{encoding}: {reported:.0f} bytes reported, {counted} counted at the proxy")
        assert counted > 0
        assert reported == pytest.approx(counted, rel=0.02)
    proxy.close()
