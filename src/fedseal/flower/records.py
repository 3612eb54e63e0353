"""Between Flower's records and named tensors, for the message API and for the older one that SecAgg+ needs.

A sealed reply carries an *envelope*, a config record that says which round it answers and how its arrays are to be
read: as new weights, or as one wire payload that holds the update itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.observation import Update, UpdateKind
from fedseal.core.tensors import Tensors, check_finite, check_like
from fedseal.federation.posthoc import travelling
from fedseal.federation.update_file import check_update
from fedseal.federation.wire import decode

ENVELOPE = "fedseal"
PAYLOAD = "fedseal.payload"
"""Name of the only array of a reply that carries a wire payload."""

Encoding: TypeAlias = Literal["weights", "wire"]

_ROUND_KEYS = ("server-round", "server_round")
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)(?P<header>\{'descr': '(?P<dtype>[<|](?:f[248]|[iu][1248]|b1))', "
    rb"'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>(?:\d{1,18}(?:,|, (?=\d)|(?=\))))*)\), \} *\n)",
    re.DOTALL,
)
"""The head of NumPy's file format, version 1, as NumPy writes it."""


@dataclass(frozen=True)
class Envelope:
    """What a sealed reply says of itself.

    Attributes:
        round: the server's number of the round it answers, from 1.
        kind: of the update.
        encoding: how it travels.
        learning_rate: of the client's steps; turns a gradient into a weight change.
        defence: the spec that was applied.
    """

    round: int
    kind: UpdateKind
    encoding: Encoding
    learning_rate: float
    defence: str

    def to_record(self) -> ConfigRecord:
        """Return the envelope as Flower carries it."""
        return ConfigRecord(
            {
                "round": self.round,
                "kind": self.kind,
                "encoding": self.encoding,
                "learning-rate": self.learning_rate,
                "defence": self.defence,
            }
        )

    @staticmethod
    def from_content(content: RecordDict) -> Envelope | None:
        """Return the envelope of a reply, None if it has none; one that makes no sense is refused."""
        record = content.config_records.get(ENVELOPE)
        if record is None:
            return None
        number, kind, encoding = record.get("round"), record.get("kind"), record.get("encoding")
        rate, defence = record.get("learning-rate"), record.get("defence")
        if (
            type(number) is not int
            or kind not in ("gradient", "delta")
            or encoding not in ("weights", "wire")
            or not isinstance(rate, float)
            or not 0 < rate < math.inf
            or not isinstance(defence, str)
        ):
            raise InputError("the reply's envelope makes no sense.", hint="Run one version on clients and server.")
        return Envelope(number, cast(UpdateKind, kind), cast(Encoding, encoding), rate, defence)


def only_arrays(content: RecordDict, what: str) -> tuple[str, ArrayRecord]:
    """Return the one array record of a message with its key."""
    records = list(content.array_records.items())
    if len(records) != 1:
        raise InputError(f"{what} holds {len(records)} array records, there must be one.", hint="Put all arrays in it.")
    return records[0]


def to_tensors(record: Mapping[str, Array], what: str) -> dict[str, Tensor]:
    """Return the tensors of an array record; arrays whose header does not fit their bytes are refused unread."""
    return {name: _tensor(array, f"{what}: array {name!r}") for name, array in record.items()}


def _tensor(array: Array, what: str) -> Tensor:
    """Read NumPy's own file format; its header is matched to the letter and never evaluated, unlike by NumPy."""
    if array.stype != "numpy.ndarray":
        raise InputError(f"{what} is stored as {array.stype!r}, not as a NumPy array.")
    found = _NPY.match(array.data)
    if found is None or int.from_bytes(found["length"], "little") != len(found["header"]):
        raise InputError(f"{what} is corrupted.", hint="Ask the client to send it again.")
    dtype = np.dtype(found["dtype"].decode())
    shape = tuple(int(side) for side in found["shape"].split(b",") if side.strip())
    left = len(array.data) - found.end()
    if math.prod(shape) * dtype.itemsize != left:
        raise InputError(f"{what} of {dtype} and shape {list(shape)} does not fit its {left} bytes.")
    order: Literal["F", "C"] = "F" if found["fortran"] == b"True" else "C"
    values = np.frombuffer(array.data, dtype, offset=found.end()).reshape(shape, order=order)
    return torch.from_numpy(np.array(values, dtype=dtype.newbyteorder("="), order="C"))


def to_record(tensors: Mapping[str, Tensor], like: ArrayRecord) -> ArrayRecord:
    """Return tensors as an array record, in the order of `like`; the old API's arrays state neither dtype nor shape."""
    arrays = {}
    for name, old in like.items():
        array = Array(tensors[name].detach().cpu())
        arrays[name] = array if old.dtype else Array(dtype="", shape=(), stype=array.stype, data=array.data)
    return ArrayRecord(arrays)


def payload_record(payload: bytes) -> ArrayRecord:
    """Return a wire payload as the array record of a reply."""
    return ArrayRecord({PAYLOAD: Array(np.frombuffer(payload, np.uint8))})


def server_round(message: Message, default: int) -> int:
    """Return the server's number of the round a message belongs to, from 1."""
    for record in message.content.config_records.values():
        for key in _ROUND_KEYS:
            value: Any = record.get(key)
            if isinstance(value, int):
                return value
    return default


@dataclass(frozen=True)
class Upload:
    """A reply as the server reads it.

    Attributes:
        update: what the client sent, as a gradient or a weight change.
        weights: the client's new state: what it was sent plus its update; buffers as they were sent.
        envelope: None where the client has no fedseal.
    """

    update: Update
    weights: dict[str, Tensor]
    envelope: Envelope | None


def read_reply(content: RecordDict, before: Tensors) -> Upload:
    """Read a client's reply against the state it was sent, or refuse it with what is wrong.

    Args:
        content: of the reply.
        before: the state the server sent.
    """
    envelope = Envelope.from_content(content)
    _, record = only_arrays(content, "reply")
    if envelope is not None and envelope.encoding == "wire":
        update = _decoded(record, before, envelope)
    else:
        update = _difference(to_tensors(record, "reply"), before)
    scale = 1.0 if update.kind == "delta" or envelope is None else -envelope.learning_rate
    weights = {
        name: torch.add(tensor, update.tensors[name], alpha=scale) if name in update.tensors else tensor
        for name, tensor in before.items()
    }
    return Upload(update, weights, envelope)


def _decoded(record: ArrayRecord, before: Tensors, envelope: Envelope) -> Update:
    if list(record) != [PAYLOAD]:
        raise InputError("the reply announces a payload and carries something else.")
    payload = to_tensors(record, "reply")[PAYLOAD]
    if payload.dtype != torch.uint8 or payload.ndim != 1:
        raise InputError("the reply's payload is not a string of bytes.")
    size = sum(tensor.numel() * tensor.element_size() for tensor in before.values())
    update = decode(payload.numpy().tobytes(), limit=size)
    check_update(update, before, "reply")
    return Update(update, envelope.kind)


def _difference(after: Tensors, before: Tensors) -> Update:
    check_like(after, before, "reply")
    check_finite({name: tensor for name, tensor in after.items() if tensor.is_floating_point()}, "reply")
    return Update({name: after[name] - before[name] for name in travelling(before)}, "delta")
