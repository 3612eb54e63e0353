"""What travels: named tensors as one versioned, checksummed payload; its length is the upload's cost.

Layout: magic, version, header length, JSON header, one body per tensor, CRC-32 of everything before. Each tensor is
coded in the shorter of two ways: `dense` (its bytes) or `bitmap` (one bit per entry, then the non-zero values).
"""

from __future__ import annotations

import json
import math
import struct
import zlib

import numpy as np
import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.tensors import Tensors

_MAGIC = b"FSEAL"
_VERSION = 1
_PREFIX = struct.Struct("<5sBI")
_DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16}


def encode(tensors: Tensors) -> bytes:
    """Encode named tensors into one payload."""
    header, bodies = [], []
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().contiguous().numpy()
        codec, body = _encode_array(array)
        header.append([name, array.dtype.name, list(array.shape), codec, len(body)])
        bodies.append(body)
    text = json.dumps(header, separators=(",", ":")).encode()
    content = b"".join([_PREFIX.pack(_MAGIC, _VERSION, len(text)), text, *bodies])
    return content + struct.pack("<I", zlib.crc32(content))


def decode(payload: bytes) -> dict[str, Tensor]:
    """Decode a payload; one that is truncated, corrupted or inconsistent is refused."""
    if len(payload) < _PREFIX.size + 4:
        raise InputError(f"payload of {len(payload)} bytes is truncated.")
    content, (checksum,) = payload[:-4], struct.unpack("<I", payload[-4:])
    magic, version, length = _PREFIX.unpack_from(content)
    if magic != _MAGIC or version != _VERSION:
        raise InputError(f"payload is not a fedseal upload of version {_VERSION}.")
    if zlib.crc32(content) != checksum:
        raise InputError("payload is corrupted: its checksum does not match.", hint="Ask the client to send it again.")
    offset = _PREFIX.size + length
    tensors = {}
    for name, dtype, shape, codec, size in json.loads(content[_PREFIX.size : offset]):
        tensors[name] = torch.from_numpy(_decode_array(content[offset : offset + size], dtype, shape, codec, name))
        offset += size
    if offset != len(content):
        raise InputError("payload is inconsistent: its header does not account for all bytes.")
    return tensors


def _encode_array(array: np.ndarray) -> tuple[str, bytes]:
    if array.dtype.name not in _DTYPES:
        raise InputError(f"cannot encode tensors of dtype {array.dtype}.", hint=f"Use one of {', '.join(_DTYPES)}.")
    flat = array.reshape(-1)
    present = flat.view(np.dtype(f"u{array.dtype.itemsize}")) != 0  # by bits, so that -0.0 survives
    kept = int(np.count_nonzero(present))
    if math.ceil(flat.size / 8) + kept * array.itemsize < flat.nbytes:
        return "bitmap", np.packbits(present).tobytes() + flat[present].tobytes()
    return "dense", flat.tobytes()


def _decode_array(body: bytes, dtype: str, shape: list[int], codec: str, name: str) -> np.ndarray:
    size = math.prod(shape)
    kind = np.dtype(_DTYPES[dtype])
    if codec == "dense":
        values = np.frombuffer(body, kind)
        if values.size != size:
            raise InputError(f"payload: tensor {name!r} has {values.size} values, its shape needs {size}.")
        return values.reshape(shape).copy()
    bits = math.ceil(size / 8)
    present = np.unpackbits(np.frombuffer(body[:bits], np.uint8), count=size).astype(bool)
    flat = np.zeros(size, kind)
    flat[present] = np.frombuffer(body[bits:], kind)
    return flat.reshape(shape)
