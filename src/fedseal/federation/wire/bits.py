"""Numbers as bits, whole arrays at a time: fixed widths, variable-length bytes (LEB128) and Rice codes.

Everything is little-endian and has one form only: what could be written shorter, or is padded with anything but
zeros, is refused, so equal arrays have equal bytes.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedseal.core.errors import InputError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.uint64]

_MAX_VARINT = 9
"""Bytes of the longest variable-length number: 63 bits."""


def packed_size(count: int, width: int) -> int:
    """Return the bytes that `pack` needs for `count` numbers of `width` bits."""
    return count * (width // 8) + -(-count * (width % 8) // 8)


def pack(numbers: Numbers, width: int) -> bytes:
    """Pack numbers [n] of `width` bits each: first their whole low bytes, plane by plane, then the bits that are left.

    Planes are plain conversions, and eight numbers of fewer than eight bits fill a 64-bit word, so there is no loop
    over numbers.
    """
    planes = [(numbers >> np.uint64(8 * plane)).astype(np.uint8).tobytes() for plane in range(width // 8)]
    rest = width % 8
    if rest:
        groups = np.zeros((-(-numbers.size // 8), 8), np.uint64)
        groups.reshape(-1)[: numbers.size] = numbers >> np.uint64(width - rest)
        words = groups[:, 0].copy()
        for place in range(1, 8):
            words |= groups[:, place] << np.uint64(rest * place)
        octets = words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :rest]
        planes.append(octets.tobytes()[: -(-numbers.size * rest // 8)])
    return b"".join(planes)


def unpack(data: memoryview, count: int, width: int) -> Numbers:
    """Return the `count` numbers of `width` bits that `pack` wrote into `data`."""
    require(len(data) == packed_size(count, width), "packed numbers have the wrong length")
    octets = np.frombuffer(data, np.uint8)
    whole = width // 8
    numbers = np.zeros(count, np.uint64)
    for plane in range(whole):
        numbers |= octets[plane * count : (plane + 1) * count].astype(np.uint64) << np.uint64(8 * plane)
    rest = width % 8
    if rest:
        groups = -(-count // 8)
        padded = np.zeros(groups * rest, np.uint8)
        padded[: octets.size - whole * count] = octets[whole * count :]
        words = np.zeros((groups, 8), np.uint8)
        words[:, :rest] = padded.reshape(groups, rest)
        joined = words.view("<u8").reshape(-1)
        spread = np.empty((groups, 8), np.uint64)
        for place in range(8):
            spread[:, place] = joined >> np.uint64(rest * place) & np.uint64((1 << rest) - 1)
        require(not spread.reshape(-1)[count:].any(), "packed numbers are padded with something")
        numbers |= spread.reshape(-1)[:count] << np.uint64(8 * whole)
    return numbers


def varint(number: int) -> bytes:
    """Return one number below 2^63 as seven bits per byte, lowest first; the top bit says that more follow."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def read_varint(data: memoryview, offset: int) -> tuple[int, int]:
    """Return the number at `offset` and the offset behind it."""
    number = 0
    for position in range(_MAX_VARINT):
        require(offset + position < len(data), "it ends within a number")
        octet = data[offset + position]
        number |= (octet & 0x7F) << (7 * position)
        if octet < 0x80:
            require(octet != 0 or position == 0, "a number is longer than it need be")
            return number, offset + position + 1
    raise InputError("payload is inconsistent: a number has more than 63 bits.")


def varint_sizes(numbers: Numbers) -> npt.NDArray[np.int64]:
    """Return the bytes of each number as `varint` writes it."""
    sizes = np.ones(numbers.size, np.int64)
    for limit in range(7, 63, 7):
        larger = numbers >= np.uint64(1 << limit)
        if not larger.any():
            break
        sizes += larger
    return sizes


def write_varints(numbers: Numbers) -> bytes:
    """Return all numbers [n] as `varint` writes them, one after the other."""
    sizes = varint_sizes(numbers)
    starts = np.cumsum(sizes) - sizes
    octets = np.zeros(int(sizes.sum()), np.uint8)
    for position in range(int(sizes.max(initial=0))):
        here = sizes > position
        low = (numbers[here] >> np.uint64(7 * position)).astype(np.uint8) & 0x7F
        octets[starts[here] + position] = low | np.where(sizes[here] > position + 1, 0x80, 0).astype(np.uint8)
    return octets.tobytes()


def read_varints(data: memoryview, count: int) -> Numbers:
    """Return the `count` numbers that `write_varints` wrote into `data`."""
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    require(ends.size == count and (count == 0 or ends[-1] == octets.size - 1), "gaps do not fit their number")
    require(count > 0 or octets.size == 0, "gaps do not fit their number")
    starts = np.concatenate([np.zeros(min(count, 1), np.int64), ends[:-1] + 1])
    sizes = ends - starts + 1
    require(int(sizes.max(initial=0)) <= _MAX_VARINT, "a number has more than 63 bits")
    require(not np.any((octets[ends] == 0) & (sizes > 1)), "a number is longer than it need be")
    numbers = np.zeros(count, np.uint64)
    for position in range(int(sizes.max(initial=0))):
        here = sizes > position
        low = (octets[starts[here] + position] & 0x7F).astype(np.uint64)
        numbers[here] |= low << np.uint64(7 * position)
    return numbers


def rice_parameter(gaps: Numbers) -> int:
    """Return the number of low bits that are written plainly, for the shortest code of gaps [n].

    Gaps of a random mask of density d are geometric with mean (1 - d) / d; the best parameter is then about
    log2(ln 2 * mean). Its neighbours are tried, as real masks are not quite random.
    """
    if gaps.size == 0:
        return 0
    guess = round(math.log2(max(1.0, math.log(2) * float(gaps.mean()))))
    candidates = range(max(0, guess - 1), min(guess + 1, 32) + 1)
    return min(candidates, key=lambda parameter: rice_size(gaps, parameter))


def rice_size(gaps: Numbers, parameter: int) -> int:
    """Return the bytes of `rice_pack`."""
    unary = gaps.size + int((gaps >> np.uint64(parameter)).sum())
    return packed_size(gaps.size, parameter) + -(-unary // 8)


def rice_pack(gaps: Numbers, parameter: int) -> bytes:
    """Code gaps [n]: all low bits packed, then all quotients in unary (as many zeros, then a one).

    The two streams are kept apart, unlike in the textbook's code: the length is the same, and both are read without
    a loop.
    """
    low = gaps & np.uint64((1 << parameter) - 1)
    ends = np.cumsum((gaps >> np.uint64(parameter)) + np.uint64(1)).astype(np.int64) - 1
    unary = np.zeros(int(ends[-1]) + 1 if ends.size else 0, np.uint8)
    unary[ends] = 1
    return pack(low, parameter) + np.packbits(unary, bitorder="little").tobytes()


def rice_unpack(data: memoryview, count: int, parameter: int) -> Numbers:
    """Return the `count` gaps that `rice_pack` wrote into `data`."""
    require(parameter <= 32, "gaps have an impossible parameter")
    split = packed_size(count, parameter)
    require(split <= len(data), "gaps are cut off")
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(data[split:], np.uint8), bitorder="little"))
    used = int(ends[-1]) // 8 + 1 if ends.size else 0
    require(ends.size == count and used == len(data) - split, "gaps do not fit their number")
    low = unpack(data[:split], count, parameter)  # only now is it known that there are so many
    quotients = np.diff(ends, prepend=-1).astype(np.uint64) - np.uint64(1)
    return (quotients << np.uint64(parameter)) | low


def require(condition: bool | np.bool_, otherwise: str) -> None:
    """Refuse a payload unless `condition` holds, saying what is wrong with it."""
    if not condition:
        raise InputError(f"payload is inconsistent: {otherwise}.", hint="Ask the client to send it again.")
