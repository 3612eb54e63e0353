"""The frame of a payload: magic, version, header, one body per tensor, CRC-32 of everything before.

The header is a number of tensors, then for each its name, dtype, codec tag, shape and length of body; numbers are
variable-length. Everything is checked before anything is allocated: the checksum, then the whole header (known dtypes
and tags, unique names, lengths that add up to the very payload, sizes within the limits below), then body by body.
The checksum finds damage, not malice; against lies under a valid checksum stand the checks and the limits. What a
sparse body unfolds to is not bounded by its length (an all-zero layer is honest and a few bytes), so the limit on
decoded bytes is what stops a decompression bomb; a server that knows its model passes that size.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.tensors import Tensors
from fedseal.federation.wire.bits import read_varint, require, varint
from fedseal.federation.wire.codecs import TAGS, TensorPlan, decode_tensor, plan_tensors

MAX_BYTES = 4 << 30
"""Most bytes of all decoded tensors together: a thousand million float32 parameters."""
MAX_TENSORS = 1 << 16
"""Most tensors of a payload."""
MAX_DIMENSIONS = 32
"""Most dimensions of a tensor."""
MAX_NAME = 1 << 10
"""Most bytes of a name in UTF-8."""

_MAGIC = b"FSEAL"
_VERSION = 2
_PREFIX = struct.Struct("<5sB")
_CHECKSUM = struct.Struct("<I")
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""A dtype's number on the wire is its place here."""


@dataclass(frozen=True)
class _Entry:
    """One tensor's row in the header; `offset` is where its body starts."""

    name: str
    dtype: torch.dtype
    tag: int
    shape: tuple[int, ...]
    size: int
    offset: int = 0

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def encode(tensors: Tensors) -> bytes:
    """Encode named tensors of floats into one payload, each by the codec that is shortest for it."""
    head, plans = _planned(tensors)
    parts, checksum = [head, *(plan.write() for plan in plans)], 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join([*parts, _CHECKSUM.pack(checksum)])


def payload_size(tensors: Tensors) -> int:
    """Return the length of `encode(tensors)` without writing it."""
    head, plans = _planned(tensors)
    return len(head) + sum(plan.size for plan in plans) + _CHECKSUM.size


def _planned(tensors: Tensors) -> tuple[bytes, list[TensorPlan]]:
    """Return everything in front of the bodies, and how each body is written."""
    _check_limits(tensors)
    header = [_PREFIX.pack(_MAGIC, _VERSION), varint(len(tensors))]
    plans = plan_tensors([tensor.detach().cpu().contiguous() for tensor in tensors.values()])
    for (name, tensor), plan in zip(tensors.items(), plans, strict=True):
        text = name.encode()
        header += [varint(len(text)), text, bytes([_DTYPES.index(tensor.dtype), plan.tag, tensor.ndim])]
        header += [*map(varint, tensor.shape), varint(plan.size)]
    return b"".join(header), plans


def decode(payload: bytes | memoryview, *, limit: int = MAX_BYTES) -> dict[str, Tensor]:
    """Decode a payload; one that is truncated, corrupted, inconsistent or too large is refused.

    Args:
        payload: from `encode`.
        limit: most bytes of memory that all tensors may take; the size of the model, where it is known.
    """
    if len(payload) < _PREFIX.size + 1 + _CHECKSUM.size:
        raise InputError(f"payload of {len(payload)} bytes is truncated.", hint="Ask the client to send it again.")
    content = memoryview(payload)[: -_CHECKSUM.size]
    magic, version = _PREFIX.unpack_from(content)
    if magic != _MAGIC or version != _VERSION:
        raise InputError(
            f"payload is not a fedseal upload of version {_VERSION}.", hint="Run one version on clients and server."
        )
    if zlib.crc32(content) != _CHECKSUM.unpack(payload[-_CHECKSUM.size :])[0]:
        raise InputError("payload is corrupted: its checksum does not match.", hint="Ask the client to send it again.")
    tensors = {}
    for entry in _read_header(content, limit):
        body = content[entry.offset : entry.offset + entry.size]
        try:
            tensors[entry.name] = decode_tensor(entry.tag, body, entry.count, entry.dtype).reshape(entry.shape)
        except InputError as error:
            raise InputError(f"tensor {entry.name!r}: {error.message}", hint=error.hint) from error
    return tensors


def _check_limits(tensors: Tensors) -> None:
    """Refuse to write what could not be read."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise InputError(f"cannot encode tensor {name!r} of {tensor.dtype}.", hint=f"Use one of {known}.")
        try:
            length = len(name.encode())
        except UnicodeEncodeError as error:
            raise InputError(f"cannot encode tensor {name!r}: its name is not Unicode text.") from error
        if length > MAX_NAME or tensor.ndim > MAX_DIMENSIONS:
            raise InputError(
                f"cannot encode tensor {name[:40]!r}: its name has {length} bytes and its shape {tensor.ndim} numbers.",
                hint=f"At most {MAX_NAME} and {MAX_DIMENSIONS} are read.",
            )
    total = sum(_memory(tuple(tensor.shape), tensor.element_size()) for tensor in tensors.values())
    if len(tensors) > MAX_TENSORS or total > MAX_BYTES:
        raise InputError(
            f"cannot encode {len(tensors)} tensors of {total} bytes.",
            hint=f"At most {MAX_TENSORS} of {MAX_BYTES} bytes are read; send the update in parts.",
        )


def _read_header(content: memoryview, limit: int) -> list[_Entry]:
    """Return all rows of the header, with the places of their bodies, or refuse the payload."""
    number, offset = read_varint(content, _PREFIX.size)
    require(number <= MAX_TENSORS, f"it announces {number} tensors, at most {MAX_TENSORS} are read")
    rows: list[_Entry] = []
    names: set[str] = set()
    memory = 0
    for _ in range(number):
        row, offset = _read_entry(content, offset)
        require(row.name not in names, f"tensor {row.name!r} occurs twice")
        names.add(row.name)
        memory += _memory(row.shape, row.dtype.itemsize)
        if memory > limit:
            raise InputError(
                f"payload of {len(content)} bytes is too large: decoded, tensor {row.name!r} of shape "
                f"{list(row.shape)} would bring it to {memory} bytes, at most {limit} are allowed.",
                hint="Refuse the client, or raise the limit if its model is that large.",
            )
        rows.append(row)
    placed = []
    for row in rows:
        placed.append(_Entry(row.name, row.dtype, row.tag, row.shape, row.size, offset))
        offset += row.size
    require(offset == len(content), "its header does not account for all bytes")
    return placed


def _read_entry(content: memoryview, offset: int) -> tuple[_Entry, int]:
    length, offset = read_varint(content, offset)
    require(length <= MAX_NAME, f"a name has {length} bytes, at most {MAX_NAME} are read")
    text, offset = bytes(content[offset : offset + length]), offset + length
    try:
        name = text.decode()
    except UnicodeDecodeError as error:
        raise InputError("payload is inconsistent: a name is not UTF-8.") from error
    require(offset + 3 <= len(content), "its header is cut off")
    dtype, tag, dimensions = content[offset : offset + 3]
    require(dtype < len(_DTYPES), f"tensor {name!r} has the unknown dtype {dtype}")
    require(tag in TAGS, f"tensor {name!r} has the unknown codec {tag}")
    require(dimensions <= MAX_DIMENSIONS, f"tensor {name!r} has {dimensions} dimensions, at most {MAX_DIMENSIONS}")
    offset += 3
    numbers = []
    for _ in range(dimensions + 1):
        value, offset = read_varint(content, offset)
        numbers.append(value)
    return _Entry(name, _DTYPES[dtype], tag, tuple(numbers[:-1]), numbers[-1]), offset


def _memory(shape: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes a shape stands for; zeros count as ones, as an empty tensor's strides must be numbers too."""
    return math.prod(max(1, side) for side in shape) * itemsize
