"""Hostile clients: replies to a guarded Flower strategy, one hostile among honest ones, and damaged wire payloads.

What must hold: the round ends, the global model is finite, and it is that of the clients that were kept.
"""

from __future__ import annotations

import logging
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from campaign.files import mutated
from campaign.outcomes import Tally, attempt
from fedseal.federation.wire import decode, encode

_SHAPES = [(), (0,), (1,) * 65, (0, 10**18, 10**18), (10**9,), (4, 10), (10, 4), (2**31, 2**31)]
_NUMBERS = [float("nan"), float("inf"), -1.0, 0.0, 1e308, 1e30, 10.0, -1e30]


def hostile_clients(count: int, seed: int) -> Tally:
    """Try so many replies; every third is a damaged wire payload by itself."""
    logging.getLogger("fedseal").setLevel(logging.CRITICAL)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    tally, source = Tally("hostile clients"), random.Random(seed)
    payload = encode(_state())
    for number in range(count):
        if number % 3 == 0:
            damaged = mutated(payload, source)
            attempt(tally, "wire payload", lambda damaged=damaged: decode(damaged, limit=1 << 20), check=_finite)  # type: ignore[misc]
        else:
            draw = random.Random(source.random())
            attempt(tally, "Flower reply", lambda draw=draw: _round_with(draw), check=_unmoved)  # type: ignore[misc]
    return tally


def _state() -> dict[str, Tensor]:
    return {"layer.weight": torch.linspace(-1, 1, 40).view(4, 10), "layer.bias": torch.linspace(0, 1, 4)}


def _finite(tensors: dict[str, Tensor]) -> str | None:
    return None if all(isinstance(tensor, Tensor) for tensor in tensors.values()) else "no tensors"


def _unmoved(result: Any) -> str | None:
    """Say what is wrong with the model after the round: it must be finite, and no further off than clients may go."""
    arrays, dropped = result
    if arrays is None:
        return "the round ended without a model"
    worst = max(float(tensor.abs().max()) for tensor in arrays.values() if tensor.numel())
    if not all(bool(torch.isfinite(tensor).all()) for tensor in arrays.values()):
        return "the global model is not finite"
    return None if dropped or worst < 1e6 else f"the global model has entries of {worst:g}"


def _round_with(draw: random.Random) -> Any:
    """Play a round with two honest clients and a hostile one; return the model and who was dropped."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    from fedseal.flower import guard
    from fedseal.flower.envelope import ENVELOPE
    from fedseal.flower.records import PAYLOAD, to_tensors

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    strategy = guard(FedAvg(fraction_evaluate=0.0))
    grid = SimpleNamespace(get_node_ids=lambda: [2, 3, 4])
    messages = list(strategy.configure_train(1, ArrayRecord(_state()), ConfigRecord({}), grid))  # type: ignore[arg-type]

    def reply(message: Message, arrays: Any, metrics: Any, config: Any = None) -> Message:
        content: dict[str, Any] = {
            "arrays": arrays,
            "metrics": metrics,
            **({} if config is None else {ENVELOPE: config}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    def hostile_array() -> Any:
        shape, way = draw.choice(_SHAPES), draw.randrange(5)
        if way == 0:
            return Array(dtype="float32", shape=shape, stype="numpy.ndarray", data=_head(shape, draw))
        if way == 1:
            return Array(
                dtype="float32", shape=(4,), stype="numpy.ndarray", data=mutated(_bytes(np.ones(4, np.float32)), draw)
            )
        if way == 2:
            return Array(dtype="object", shape=(1,), stype=draw.choice(["pickle", "numpy.ndarray"]), data=b"\x80\x04N.")
        if way == 3:
            return Array(np.full(draw.choice([(4, 10), (4,), (1,)]), draw.choice(_NUMBERS), np.float32))
        return Array(np.zeros(draw.choice([(4, 10), (4,)]), draw.choice([np.int64, np.float64, np.uint8, np.bool_])))

    def hostile_record() -> Any:
        if draw.random() < 0.25:
            payload = mutated(encode({n: t * draw.choice(_NUMBERS) for n, t in _state().items()}), draw)
            return ArrayRecord({PAYLOAD: Array(np.frombuffer(payload, np.uint8))})
        arrays = {name: Array(tensor) for name, tensor in _state().items()}
        arrays[draw.choice([*arrays, "layer.other"])] = hostile_array()
        return ArrayRecord(arrays)

    def hostile_metrics() -> Any:
        examples = draw.choice([10, -1, 0, 1 << 62, *(value for value in _NUMBERS)])
        return draw.choice([MetricRecord({"num-examples": examples}), MetricRecord({}), MetricRecord({"other": 1})])

    def hostile_envelope() -> Any:
        return ConfigRecord(
            {
                "round": draw.choice([1, 0, -5, 1 << 62]),
                "kind": draw.choice(["gradient", "delta", "what"]),
                "encoding": draw.choice(["weights", "wire", ""]),
                "learning-rate": draw.choice([0.1, *_NUMBERS]),
                "defence": draw.choice(["none", "topk", "\x00", "x" * 10_000]),
            }
        )

    honest = [reply(message, ArrayRecord(_state()), MetricRecord({"num-examples": 10})) for message in messages[:2]]
    config = hostile_envelope() if draw.random() < 0.5 else None
    bad = reply(messages[2], hostile_record(), hostile_metrics(), config)
    arrays, _ = strategy.aggregate_train(1, [*honest, bad])
    return None if arrays is None else to_tensors(arrays, "result"), len(strategy.dropped)


def _bytes(array: Any) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _head(shape: tuple[int, ...], draw: random.Random) -> bytes:
    """Return the head of a NumPy file that announces a shape, and hardly a byte of it."""
    sides = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({sides}), }}".encode()
    text = text.ljust(((len(text) + 74) // 64) * 64 - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(draw.choice([0, 4, 16, 160]))
