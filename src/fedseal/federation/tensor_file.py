"""Strict reading of safetensors files that come from elsewhere.

A file is read once and believed only after its header has been checked against its bytes: a length that fits, JSON
without duplicate names, known dtypes, sizes that are those of the shapes, places that follow each other without a gap
and end where the file ends. Nothing is unpickled and nothing is decompressed, so a file can never become larger in
memory than it is on disk; larger than `MAX_BYTES` it is not opened.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load
from torch import Tensor

from fedseal.core.errors import InputError

MAX_BYTES = 4 << 30
"""Largest file that is opened."""
MAX_HEADER = 16 << 20
"""Largest header that is parsed."""

_MOST_SIDES = 64
_LENGTH = struct.Struct("<Q")
_ITEMSIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes it"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x80", "a Python pickle"),
)
_SAVE_AGAIN = "Write it with safetensors.torch.save_file; pickles and archives are never opened."


@dataclass(frozen=True)
class TensorFile:
    """What a file holds.

    Attributes:
        tensors: by name; their order means nothing.
        metadata: the file's own strings.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_tensors(path: Path, what: str, *, within: Path | None = None) -> TensorFile:
    """Read a safetensors file, or refuse it with what is wrong with it.

    Args:
        path: of the file.
        what: it is said to be, for messages.
        within: directory the file must really lie in, links followed.
    """
    _refuse_escape(path, what, within)
    content = _content(path, what)
    metadata = _checked_header(content, f"{what} {path}")
    try:
        return TensorFile(load(content), metadata)
    except (safetensors.SafetensorError, ValueError, RuntimeError, OverflowError, TypeError) as error:
        raise InputError(f"{what} {path} is not a readable safetensors file: {error}.", hint=_SAVE_AGAIN) from error


def _refuse_escape(path: Path, what: str, within: Path | None) -> None:
    if within is not None and not path.resolve().is_relative_to(within.resolve()):
        raise InputError(
            f"{what} {path} leads out of {within}.", hint="Copy the file into the directory instead of linking it."
        )


def _content(path: Path, what: str) -> bytes:
    try:
        if not path.is_file():
            raise InputError(f"there is no {what} {path}.", hint="Check the path: it must be a regular file.")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(
                f"{what} {path} has {size} bytes, at most {MAX_BYTES} are read.", hint="Is this the right file?"
            )
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{what} {path} cannot be read: {reason}.", hint="Check its permissions.") from error


def _checked_header(content: bytes, what: str) -> dict[str, str]:
    """Return the metadata of a file whose header is consistent with its bytes."""
    foreign = next((words for magic, words in _FOREIGN if content.startswith(magic)), None)
    # A safetensors file may begin with the same bytes, as these are a length; then a brace follows.
    if foreign is not None and content[8:9] != b"{":
        raise InputError(f"{what} is {foreign}, not a safetensors file.", hint=_SAVE_AGAIN)
    if len(content) < _LENGTH.size:
        raise InputError(f"{what} is truncated: it has {len(content)} bytes.", hint="Copy the file again.")
    length = _LENGTH.unpack_from(content)[0]
    if length > min(MAX_HEADER, len(content) - _LENGTH.size):
        raise InputError(
            f"{what} is truncated or no safetensors file: its header is said to take {length} of the "
            f"{len(content) - _LENGTH.size} bytes that follow.",
            hint="Copy the file again.",
        )
    header = _parsed(content[_LENGTH.size : _LENGTH.size + length], what)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise InputError(f"{what}: its metadata are not strings.", hint=_SAVE_AGAIN)
    body = len(content) - _LENGTH.size - length
    spans = sorted(_span(name, row, body, what) for name, row in header.items())
    end = 0
    for begin, stop in spans:
        if begin != end:
            raise InputError(f"{what}: its header lies, tensors overlap or leave a gap at byte {min(begin, end)}.")
        end = stop
    if end != body:
        raise InputError(
            f"{what}: its header lies about sizes: tensors take {end} bytes, the file holds {body}.",
            hint="Copy the file again.",
        )
    return metadata


def _parsed(text: bytes, what: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    try:
        header = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what}: its header is not valid JSON ({error}).", hint=_SAVE_AGAIN) from error
    if not isinstance(header, dict):
        raise InputError(f"{what}: its header is not a table of tensors.", hint=_SAVE_AGAIN)
    return header


def _span(name: str, row: Any, body: int, what: str) -> tuple[int, int]:
    """Return where one tensor's bytes begin and end, or refuse a row that contradicts itself or the file."""
    if not isinstance(row, dict) or set(row) != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{what}: tensor {name!r} is not described by dtype, shape and data_offsets.")
    dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEMSIZE:
        raise InputError(f"{what}: tensor {name!r} has the unknown dtype {dtype!r}.", hint="Save it as float32.")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise InputError(f"{what}: tensor {name!r} has an impossible shape or place.")
    begin, end = offsets
    if not begin <= end <= body or end - begin != math.prod(shape) * _ITEMSIZE[dtype]:
        raise InputError(
            f"{what}: its header lies about sizes: tensor {name!r} of shape {shape} is said to lie at bytes "
            f"{begin} to {end} of {body}.",
            hint="Copy the file again.",
        )
    return begin, end


def _are_sizes(value: Any) -> bool:
    """Tell whether these are numbers a tensor can have; of an empty one the other sides count too, as strides do."""
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return False
    return len(value) <= _MOST_SIDES and math.prod(max(1, item) for item in value) < 1 << 62
