"""Hostile replies by the thousand: the model stays finite and within the guard's bound, only who sent one is named."""

from __future__ import annotations

import copy
import math
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedseal.core.seeds import generator
from fedseal.federation.limits import norm_of
from fedseal.federation.wire import encode
from fedseal.flower import guard
from fedseal.flower.records import PAYLOAD, payload_record, to_tensors

State = dict[str, Tensor]
HOSTILE, NODES = 4, 5
DTYPES = (torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)

extremes = st.sampled_from([0.0, -1.0, 1e-45, 1e30, -1e38, 1e308, math.inf, -math.inf, math.nan])
factors = extremes | st.floats(-1e6, 1e6)
weights = extremes | st.integers(-(2**62), 2**62) | st.floats(0.1, 1e15)
values = st.text(max_size=8) | st.integers(-(2**62), 2**62) | st.floats() | st.booleans() | st.binary(max_size=8)
envelopes = st.fixed_dictionaries(
    {},
    optional={
        "round": values | st.integers(0, 3),
        "encoding": values | st.sampled_from(["weights", "wire"]),
        "kind": values | st.sampled_from(["gradient", "delta"]),
        "learning-rate": values | factors,
        "defence": values | st.just("none"),
        "unit": values,
        "cost-bytes-up": values,
    },
)


@st.composite
def attacks(draw: Any) -> dict[str, Any]:
    """One hostile reply: what is done to an honest one."""
    kind = draw(
        st.sampled_from(["scale", "entry", "dtype", "shape", "names", "envelope", "weight", "replay", "payload"])
    )
    return {
        "kind": kind,
        "factor": draw(factors),
        "weight": draw(weights),
        "dtype": draw(st.sampled_from(DTYPES)),
        "shape": draw(st.sampled_from(["flat", "turned", "more", "empty", "scalar", "long"])),
        "envelope": draw(envelopes),
        "again": draw(st.sampled_from(["weights", "change"])),
        "bytes": draw(st.binary(max_size=64)),
        "cut": draw(st.integers(0, 60)),
    }


def initial() -> State:
    return {"layer.weight": torch.linspace(-1, 1, 40).view(4, 10), "layer.bias": torch.linspace(0, 1, 4)}


def step(node: int, number: int, like: State) -> State:
    source = generator(7, "step", node, number)
    return {name: 0.1 * torch.randn(tensor.shape, generator=source) for name, tensor in like.items()}


def honest_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        state = to_tensors(message.content["arrays"], "message")
        moved = step(context.node_id, int(message.content["config"]["server-round"]), state)
        content = {
            "arrays": ArrayRecord({name: state[name] + moved[name] for name in state}),
            "metrics": MetricRecord({"num-examples": 10 + context.node_id}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def spoil(reply: Message, sent: State, earlier: tuple[State, State], attack: dict[str, Any]) -> None:
    """Do to an honest reply what the attack says."""
    content, state = reply.content, to_tensors(reply.content["arrays"], "reply")
    change = {name: state[name] - sent[name] for name in state}
    kind, factor = attack["kind"], attack["factor"]
    if kind == "scale":
        state = {name: (sent[name].double() + factor * change[name].double()).float() for name in state}
    elif kind == "entry":
        state["layer.bias"][1] = torch.tensor(factor).float()
    elif kind == "dtype":
        state["layer.weight"] = (state["layer.weight"] * 100).to(attack["dtype"])
    elif kind == "shape":
        weight = state["layer.weight"]
        state["layer.weight"] = {
            "flat": weight.flatten(),
            "turned": weight.T.contiguous(),
            "more": weight[None],
            "empty": weight[:0],
            "scalar": torch.tensor(1.0),
            "long": weight.repeat(50, 1),
        }[attack["shape"]]
    elif kind == "names":
        state.pop("layer.bias")
        state[attack["bytes"].hex() or "x"] = torch.ones(4)
    elif kind == "weight":
        content["metrics"]["num-examples"] = attack["weight"]
    elif kind == "replay":
        before, after = earlier
        state = after if attack["again"] == "weights" else {n: sent[n] + (after[n] - before[n]) for n in after}
    content.array_records["arrays"] = ArrayRecord(state)
    if kind == "envelope":
        content.config_records["fedseal"] = ConfigRecord(attack["envelope"])
    if kind == "payload":
        data = encode({name: tensor * factor if math.isfinite(factor) else tensor for name, tensor in change.items()})
        broken = data[: len(data) - attack["cut"]] + attack["bytes"]
        content.array_records["arrays"] = (
            payload_record(broken)
            if attack["weight"] != 0
            else ArrayRecord({PAYLOAD: Array(np.frombuffer(broken[: len(broken) // 8 * 8], np.float64))})
        )
        content.config_records["fedseal"] = ConfigRecord({"round": 2, "encoding": "wire", "defence": "x"})


def must_be_named(attack: dict[str, Any], sizes: list[float]) -> bool:
    """Whether nobody could take the reply for an honest one, whatever a guard thinks of it."""
    kind, factor, weight = attack["kind"], attack["factor"], attack["weight"]
    if kind == "scale":
        return not math.isfinite(factor) or abs(factor) * min(sizes) > 5.01 * median([*sizes, math.inf])
    if kind == "entry":
        return not abs(factor) < 3e38
    if kind == "dtype":
        return attack["dtype"] not in (torch.float16, torch.float64)
    if kind in ("shape", "names", "replay"):
        return True
    if kind == "weight":
        return not 0 < weight < math.inf or weight > 400
    return False


def play(flower: Any, attack: dict[str, Any]) -> None:
    strategy = guard(FedAvg(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES))
    grid = flower.grid(honest_app(), NODES)
    earlier: tuple[State, State] = ({}, {})
    arrays = ArrayRecord(initial())
    for number in (1, 2):
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        sent = to_tensors(messages[0].content["arrays"], "sent")
        replies = grid.send_and_receive(messages)
        sizes = [norm_of(step(node, number, sent)) for node in range(2, 2 + NODES)]
        for reply in replies:
            if reply.metadata.src_node_id == HOSTILE:
                if number == 2:
                    spoil(reply, sent, earlier, attack)
                earlier = (sent, copy.deepcopy(to_tensors(reply.content["arrays"], "x")) if number == 1 else {})
        result, _ = strategy.aggregate_train(number, replies)
        assert result is not None
        arrays = result
    after = to_tensors(arrays, "result")
    named = {one.client for one in (*strategy.dropped, *strategy.outliers)}
    assert named <= {HOSTILE}, "an honest client was named"
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())
    assert {name: (t.shape, t.dtype) for name, t in after.items()} == {
        name: (t.shape, t.dtype) for name, t in initial().items()
    }
    moved = norm_of({name: after[name].double() - sent[name].double() for name in after})
    assert moved <= 5 * max(sizes) * 1.0001, "the bound does not hold"
    if must_be_named(attack, sizes):
        assert named == {HOSTILE}


QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@QUICK
@given(attack=attacks())
def test_no_reply_moves_the_model_beyond_the_bound_and_only_its_sender_is_named(flower: Any, attack: dict[str, Any]):
    play(flower, attack)


@pytest.mark.slow
@settings(QUICK, max_examples=1000, derandomize=False)
@given(attack=attacks())
def test_a_thousand_hostile_replies(flower: Any, attack: dict[str, Any]):
    play(flower, attack)
