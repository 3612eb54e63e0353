"""Between Flower's records and named tensors, for the message API and for the older one that SecAgg+ needs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.core.tensors import Tensors, check_finite, check_like
from fedseal.federation.posthoc import travelling
from fedseal.federation.wire import decode
from fedseal.flower.envelope import Envelope
from fedseal.flower.statistics import as_statistics, statistics_of

PAYLOAD = "fedseal.payload"
"""Name of the only array of a reply that carries a wire payload."""

_STYPE = "numpy.ndarray"
_MOST_DIMENSIONS = 16
_MOST_ENTRIES = 1 << 40
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)(?P<header>\{'descr': '(?P<dtype>[<|](?:f[248]|[iu][1248]|b1))', "
    rb"'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>(?:\d{1,18}(?:,|, (?=\d)|(?=\))))*)\), \} *\n)",
    re.DOTALL,
)
"""The head of NumPy's file format, version 1, as NumPy writes it."""


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
    values = _values(array, what)
    return torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("="), order="C"))


def _values(array: Array, what: str) -> npt.NDArray[Any]:
    """Look at NumPy's own file format; its header is matched to the letter and never evaluated, unlike by NumPy."""
    if array.stype != _STYPE:
        raise InputError(f"{what} is stored as {array.stype!r}, not as a NumPy array.")
    found = _NPY.match(array.data)
    if found is None or int.from_bytes(found["length"], "little") != len(found["header"]):
        raise InputError(f"{what} is corrupted.", hint="Ask the client to send it again.")
    dtype = np.dtype(found["dtype"].decode())
    shape = tuple(int(side) for side in found["shape"].split(b",") if side.strip())
    if len(shape) > _MOST_DIMENSIONS or math.prod(max(side, 1) for side in shape) > _MOST_ENTRIES:
        raise InputError(f"{what} has an impossible shape of {len(shape)} dimensions.")
    left = len(array.data) - found.end()
    if math.prod(shape) * dtype.itemsize != left:
        raise InputError(f"{what} of {dtype} and shape {list(shape)} does not fit its {left} bytes.")
    order: Literal["F", "C"] = "F" if found["fortran"] == b"True" else "C"
    return np.frombuffer(array.data, dtype, offset=found.end()).reshape(shape, order=order)


def to_record(tensors: Mapping[str, Tensor], like: ArrayRecord) -> ArrayRecord:
    """Return tensors as an array record, in the order of `like`; the old API's arrays state neither dtype nor shape."""
    arrays = {}
    for name, old in like.items():
        array = to_array(tensors[name])
        arrays[name] = array if old.dtype else Array(dtype="", shape=(), stype=array.stype, data=array.data)
    return ArrayRecord(arrays)


def to_array(tensor: Tensor) -> Array:
    """Return a tensor as Flower carries it: what `Array(tensor)` gives, by one copy of its bytes instead of three."""
    values = tensor.detach().cpu().contiguous().numpy()
    return _array(values.dtype, values.shape, values.reshape(-1).view(np.uint8).data)


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], content: bytes | memoryview) -> Array:
    head = BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(head, facts)
    return Array(str(dtype), tuple(shape), _STYPE, b"".join([head.getvalue(), content]))


def payload_record(payload: bytes) -> ArrayRecord:
    """Return a wire payload as the array record of a reply."""
    return ArrayRecord({PAYLOAD: _array(np.dtype(np.uint8), (len(payload),), payload)})


def in_types_of(like: Tensors, tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors in the types of `like`, where they are the same kind of number.

    Strategies average counters to fractions and single precision to double; what comes back from them is the model's
    all the same. An integer where the model has a fraction is left as it is, and `check_like` names it.
    """
    return {name: _in_type_of(like[name], tensor) if name in like else tensor for name, tensor in tensors.items()}


def _in_type_of(like: Tensor, tensor: Tensor) -> Tensor:
    if tensor.dtype == like.dtype:
        return tensor
    if like.is_floating_point():
        return tensor.to(like.dtype) if tensor.is_floating_point() else tensor
    if tensor.is_floating_point():
        tensor = tensor.nan_to_num(0.0).round()
    return tensor.to(like.dtype)


@dataclass(frozen=True)
class Upload:
    """A reply as the server reads it.

    Attributes:
        update: what the client sent: the weight change of what may travel.
        weights: the client's new state: what it was sent plus its update; buffers by the client's policy.
        envelope: None where the client has no fedseal.
    """

    update: Update
    weights: dict[str, Tensor]
    envelope: Envelope | None


def read_reply(content: RecordDict, before: Tensors, *, learning_rate: float | None = None) -> Upload:
    """Read a client's reply against the state it was sent, or refuse it with what is wrong.

    Args:
        content: of the reply.
        before: the state the server sent.
        learning_rate: the clients', if the server knows it: for the gradients of older clients.
    """
    envelope = Envelope.from_content(content)
    _, record = only_arrays(content, "reply")
    if envelope is not None and envelope.encoding == "wire":
        change = _decoded(record, before)
    else:
        change = _difference(to_tensors(record, "reply"), before)
    if envelope is not None and envelope.kind == "gradient" and envelope.encoding == "wire":
        if learning_rate is None:
            raise InputError(
                "the reply is a gradient, and the server does not know the clients' learning rate.",
                hint="Upgrade the client, or give guard(learning_rate=...).",
            )
        change = {name: tensor * -learning_rate for name, tensor in change.items()}
    weights = {name: tensor + change[name] if name in change else tensor for name, tensor in before.items()}
    weights |= as_statistics({name: weights[name] for name in statistics_of(before) if name in change})
    check_finite({name: weights[name] for name in change}, "reply")  # and so is the change
    sealed = travelling(before)
    return Upload(
        Update({name: tensor for name, tensor in change.items() if name in sealed}, "delta"), weights, envelope
    )


def _decoded(record: ArrayRecord, before: Tensors) -> dict[str, Tensor]:
    if list(record) != [PAYLOAD]:
        raise InputError("the reply announces a payload and carries something else.")
    payload = _values(record[PAYLOAD], f"reply: array {PAYLOAD!r}")
    if payload.dtype != np.uint8 or payload.ndim != 1:
        raise InputError("the reply's payload is not a string of bytes.")
    size = sum(tensor.numel() * tensor.element_size() for tensor in before.values())
    decoded = decode(payload.data, limit=size)
    change = in_types_of(before, decoded)
    check_like(change, {name: before[name] for name in change if name in before}, "reply")
    return _moving(change)


def _difference(after: Tensors, before: Tensors) -> dict[str, Tensor]:
    after = in_types_of(before, after)
    check_like(after, before, "reply")
    return _moving({name: after[name] - tensor for name, tensor in before.items() if tensor.is_floating_point()})


def _moving(change: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what moves the model; counters are none of a server's business."""
    moving = {name: tensor for name, tensor in change.items() if tensor.is_floating_point()}
    if not moving:
        raise InputError("the reply holds no update.")
    return moving
