"""Byte-string columns out of a flat Parquet file, with no Parquet library.

The groceries come as one Parquet file, and the libraries that read any such file weigh 350 MB. This reads what that
file uses: optional BYTE_ARRAY columns without nulls, gzip, version-1 pages, PLAIN or dictionary values. Anything
else is refused. Format: the Apache Parquet specification, with Thrift's compact protocol for its headers.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

from fedseal.core.errors import InputError

LARGEST_PAGE = 256 << 20
MOST_VALUES = 1 << 24
"""What a page may unpack to, in bytes and in values."""

_MAGIC = b"PAR1"
_BYTE_ARRAY, _GZIP, _DATA_PAGE, _DICTIONARY_PAGE = 6, 2, 0, 2
_MALFORMED = (ValueError, LookupError, TypeError, RecursionError, MemoryError, struct.error, zlib.error)
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8


@dataclass
class _Thrift:
    """A cursor over Thrift's compact encoding; structs become dictionaries keyed by field number."""

    data: bytes
    at: int = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            fields[number] = self._value(head & 0x0F, in_list=False)
        return fields

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _value(self, kind: int, *, in_list: bool) -> Any:
        match kind:
            case 1 | 2:
                return self._byte() == 1 if in_list else kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self.integer()
            case 7:
                self.at += 8
                return struct.unpack_from("<d", self.data, self.at - 8)[0]
            case 8:
                length = self.varint()
                self.at += length
                return self.data[self.at - length : self.at]
            case 9 | 10:
                head = self._byte()
                count = head >> 4 if head >> 4 != 15 else self.varint()
                return [self._value(head & 0x0F, in_list=True) for _ in range(count)]
            case 12:
                return self.struct()
        raise ValueError(f"unknown Thrift type {kind}")


def read_columns(data: bytes, names: tuple[str, ...], where: str) -> dict[str, list[bytes]]:
    """Return the values of the named byte-string columns of a Parquet file, row by row.

    Args:
        data: the whole file.
        names: the columns wanted.
        where: its origin, for messages.
    """
    try:
        return _read_columns(data, names)
    except _MALFORMED as error:
        raise InputError(
            f"{where} is not a Parquet file this reader understands: {error}.", hint="Delete it and fetch again."
        ) from error


def _read_columns(data: bytes, names: tuple[str, ...]) -> dict[str, list[bytes]]:
    if len(data) < 12 or data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise ValueError("it does not begin and end with PAR1")
    (length,) = struct.unpack("<I", data[-8:-4])
    if length > len(data) - 12:
        raise ValueError("its footer is longer than the file")
    footer = _Thrift(data[-8 - length : -8]).struct()
    columns: dict[str, list[bytes]] = {name: [] for name in names}
    for group in footer[4]:
        for chunk in group[1]:
            name = b".".join(chunk[3][3]).decode()
            if name in columns:
                columns[name] += _read_chunk(data, chunk[3])
    for name, values in columns.items():
        if len(values) != footer[3]:
            raise ValueError(f"the column {name!r} has {len(values)} values for {footer[3]} rows")
    return columns


def _read_chunk(data: bytes, chunk: dict[int, Any]) -> list[bytes]:
    if chunk[1] != _BYTE_ARRAY or chunk[4] != _GZIP:
        raise ValueError("a wanted column is not gzipped byte strings")
    cursor = _Thrift(data, chunk.get(11, chunk[9]))
    dictionary: list[bytes] = []
    values: list[bytes] = []
    while len(values) < chunk[5]:
        header = cursor.struct()
        if header[3] < 0:
            raise ValueError("a page has a negative size")
        page = _inflate(data[cursor.at : cursor.at + header[3]], header[2])
        cursor.at += header[3]
        if header[1] == _DICTIONARY_PAGE:
            dictionary = _plain(page, header[7][1])
        elif header[1] == _DATA_PAGE:
            values += _data_page(page, header[5], dictionary)
        else:
            raise ValueError(f"unknown page type {header[1]}")
    return values


def _inflate(content: bytes, size: int) -> bytes:
    if not 0 <= size <= LARGEST_PAGE:
        raise ValueError(f"a page unpacks to {size} bytes")
    page = zlib.decompressobj(wbits=31).decompress(content, size + 1)
    if len(page) != size:
        raise ValueError("a page does not unpack to its declared size")
    return page


def _data_page(page: bytes, header: dict[int, Any], dictionary: list[bytes]) -> list[bytes]:
    count, encoding = header[1], header[2]
    (levels,) = struct.unpack_from("<I", page)
    if any(level != 1 for level in _hybrid(page[4 : 4 + levels], 1, count)):
        raise ValueError("a wanted column has missing values")
    body = page[4 + levels :]
    if encoding == _PLAIN:
        return _plain(body, count)
    if encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
        return [dictionary[index] for index in _hybrid(body[1:], body[0], count)]
    raise ValueError(f"unknown encoding {encoding}")


def _plain(body: bytes, count: int) -> list[bytes]:
    values, at = [], 0
    for _ in range(count):
        (length,) = struct.unpack_from("<I", body, at)
        if at + 4 + length > len(body):
            raise ValueError("a value is longer than its page")
        values.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    return values


def _hybrid(body: bytes, width: int, count: int) -> list[int]:
    """Decode Parquet's mix of run-length and bit-packed integers of `width` bits."""
    if not (0 <= count <= MOST_VALUES and width <= 32):
        raise ValueError(f"a page declares {count} values of {width} bits")
    cursor, values, width_bytes = _Thrift(body), list[int](), (width + 7) // 8
    while len(values) < count:
        head = cursor.varint()
        packed = head & 1
        length = (head >> 1) * width if packed else width_bytes
        word = int.from_bytes(body[cursor.at : cursor.at + length], "little")
        cursor.at += length
        if packed:
            available = min(8 * (head >> 1), count - len(values))
            values += [(word >> (index * width)) & ((1 << width) - 1) for index in range(available)]
        else:
            values += [word] * min(head >> 1, count - len(values))
        if head >> 1 == 0:
            raise ValueError("an empty run")
    return values
