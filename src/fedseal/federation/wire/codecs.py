"""One tensor as bytes: every way to say which entries are there, times two ways to write their values.

Positions: all, 32-bit indices, a bitmap, gaps between the present entries as variable-length bytes or Rice codes, or
Rice-coded gaps between the *absent* ones, for tensors with few zeros (the first five are its table).
Values: raw bits, or a grid `scale * k / s` with s = 2^(b-1) - 1, as quantisers leave it: sign and
magnitude in b bits each; b = 1 is sign x scale. The shortest pair is taken and named by a one-byte tag, so a tensor
that is both sparse and quantised profits twice. Nothing is lost: "absent" means all bits zero, so -0.0 and NaN
payloads survive, and a grid is used only if it reproduces every bit.

Layout of a body: number of present entries (unless all are), Rice parameter if any, values, positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedseal.federation.wire.bits import (
    Numbers,
    pack,
    packed_size,
    read_varint,
    read_varints,
    require,
    rice_pack,
    rice_parameter,
    rice_size,
    rice_unpack,
    unpack,
    varint,
    varint_sizes,
    write_varints,
)
from fedseal.federation.wire.grids import MANTISSA, SAMPLE, Grid, bits_of, find_grids

_MAX_INDEX = 1 << 32


class Positions(IntEnum):
    """How a body says which entries are there; the low four bits of the tag."""

    ALL = 0
    INDEX = 1
    BITMAP = 2
    VARINT = 3
    RICE = 4
    RICE_ABSENT = 5


class Values(IntEnum):
    """How a body writes the entries that are there; the high four bits of the tag."""

    RAW = 0
    GRID = 1


TAGS = frozenset(positions | values << 4 for positions in Positions for values in Values)
"""Every tag there is."""


@dataclass(frozen=True)
class _Shape:
    """One candidate: its tag, how many values it writes, and its exact length."""

    positions: Positions
    grid: Grid | None
    count: int
    size: int

    @property
    def tag(self) -> int:
        return self.positions | (Values.RAW if self.grid is None else Values.GRID) << 4


@dataclass(frozen=True)
class TensorPlan:
    """How a tensor is coded: the tag, the exact length of its body, and what writes it."""

    tag: int
    size: int
    write: Callable[[], bytes]


@dataclass(frozen=True)
class _Entries:
    """Which entries of a flat tensor are there.

    Attributes:
        flat: the tensor.
        words: its bit patterns.
        present: which of them are not zero; `kept` of them.
        rare: where the present ones lie, or the absent ones if those are fewer; None if all are present.
    """

    flat: Tensor
    words: npt.NDArray[np.unsignedinteger]
    present: npt.NDArray[np.bool_]
    kept: int
    rare: npt.NDArray[np.int64] | None

    @classmethod
    def of(cls, tensor: Tensor) -> _Entries:
        flat = tensor.reshape(-1)
        words = _words(flat)
        present = words != 0
        kept = int(np.count_nonzero(present))
        rare = np.flatnonzero(present if 2 * kept <= flat.numel() else ~present) if kept < flat.numel() else None
        return cls(flat, words, present, kept, rare)

    def some(self, most: int) -> Tensor:
        """Return at most so many of the present values, spread over the tensor; at least one if there is any."""
        if self.rare is not None and 2 * self.kept <= self.flat.numel():
            return self.flat[torch.from_numpy(self.rare[:: max(1, -(-self.kept // most))])]
        stride = max(1, -(-self.flat.numel() // most))
        if self.rare is None:
            return self.flat[::stride]
        sample = self.flat[::stride][torch.from_numpy(self.present[::stride])]
        return sample if sample.numel() else self.flat[torch.from_numpy(np.flatnonzero(self.present)[:most])]


def plan_tensors(tensors: Sequence[Tensor]) -> list[TensorPlan]:
    """Choose the shortest code of each of several tensors of floats, of any shape, without writing it."""
    entries = [_Entries.of(tensor) for tensor in tensors]
    grids = find_grids([one.flat for one in entries], [one.some(SAMPLE) for one in entries])
    return [_plan(one, grid) for one, grid in zip(entries, grids, strict=True)]


def _plan(entries: _Entries, grid: Grid | None) -> TensorPlan:
    flat, kept, rare = entries.flat, entries.kept, entries.rare
    gaps = None if rare is None else (np.diff(rare, prepend=-1) - 1).astype(np.uint64)
    parameter = 0 if gaps is None else rice_parameter(gaps)
    sizes = _position_sizes(flat.numel(), kept, gaps, parameter)
    best = min(_candidates(sizes, flat.numel(), kept, grid, flat.element_size()), key=lambda one: (one.size, one.tag))

    def write() -> bytes:
        head = b"" if best.positions is Positions.ALL else varint(kept)
        if best.positions in (Positions.RICE, Positions.RICE_ABSENT):
            head += bytes([parameter])
        chosen = slice(None) if best.positions is Positions.ALL or rare is None else entries.present
        values = _values(entries.words, flat, chosen, best.grid)
        return head + values + _write_positions(best.positions, entries.present, gaps, parameter)

    return TensorPlan(best.tag, best.size, write)


def decode_tensor(tag: int, body: memoryview, count: int, dtype: torch.dtype) -> Tensor:
    """Return the flat tensor of `count` entries that a body holds; one that does not fit is refused.

    The caller has checked the tag, and that `count` entries may be allocated.
    """
    positions, values = Positions(tag & 15), Values(tag >> 4)
    width = dtype.itemsize
    kept, offset, parameter = count, 0, 0
    if positions is not Positions.ALL:
        kept, offset = read_varint(body, 0)
        require(kept <= count, "more entries are present than there are")
        require(kept < count, "positions are written where all entries are present")
    if kept == 0:
        require(tag == _empty_tag(count), "a tensor of zeros is written in another way than zeros are")
    if positions in (Positions.RICE, Positions.RICE_ABSENT):
        require(offset < len(body), "a parameter is missing")
        parameter, offset = body[offset], offset + 1
    if values is Values.GRID:
        grid, offset = _read_grid(body, offset, dtype)
        end = offset + packed_size(kept, grid.width)
        require(end <= len(body), "values are cut off")
        numbers = unpack(body[offset:end], kept, grid.width)
        words = _words(_ungrid(numbers, grid))
        for formula in range(grid.formula):  # the first that gives the bits is the one that is written
            other = _words(_ungrid(numbers, Grid(grid.scale, grid.width, formula)))
            require(not np.array_equal(other, words), "a grid names a later formula than it need")
    else:
        end = offset + kept * width
        require(end <= len(body), "values are cut off")
        words = np.frombuffer(body[offset:end], f"<u{width}")
    rest = body[end:]
    if positions is Positions.ALL:
        require(len(rest) == 0, "values are followed by something")
        flat = words.astype(f"u{width}")
    else:
        require(bool(words.all()), "an absent entry is written as present")
        where = _read_positions(positions, rest, count, kept, parameter)
        flat = np.zeros(count, f"u{width}")
        flat[where] = words
    return torch.from_numpy(flat.view(f"i{width}")).view(dtype)


def _empty_tag(count: int) -> int:
    """Return the one tag of a tensor of zeros, or of no entries."""
    return Positions.ALL if count == 0 else Positions.INDEX if count <= _MAX_INDEX else Positions.VARINT


def _candidates(sizes: dict[Positions, int], count: int, kept: int, grid: Grid | None, itemsize: int) -> list[_Shape]:
    shapes = []
    for positions, size in sizes.items():
        written = count if positions is Positions.ALL else kept
        shapes.append(_Shape(positions, None, written, size + written * itemsize))
        if grid is not None:
            fine = Grid(grid.scale, 2, 0) if grid.width == 1 and written > kept else grid  # zeros need a level
            shapes.append(_Shape(positions, fine, written, size + itemsize + 1 + packed_size(written, fine.width)))
    return shapes


def _position_sizes(count: int, kept: int, gaps: Numbers | None, parameter: int) -> dict[Positions, int]:
    """Return the exact bytes each way of writing positions takes, head included; ways that cannot win are left out."""
    sizes = {Positions.ALL: 0}
    if gaps is None:
        return sizes
    head = len(varint(kept))
    sizes[Positions.BITMAP] = head + -(-count // 8)
    if 2 * kept > count:
        sizes[Positions.RICE_ABSENT] = head + 1 + rice_size(gaps, parameter)
        return sizes
    sizes[Positions.RICE] = head + 1 + rice_size(gaps, parameter)
    sizes[Positions.VARINT] = head + int(varint_sizes(gaps).sum())
    if count <= _MAX_INDEX:
        sizes[Positions.INDEX] = head + 4 * kept
    return sizes


def _write_positions(
    positions: Positions, present: npt.NDArray[np.bool_], gaps: Numbers | None, parameter: int
) -> bytes:
    if positions is Positions.ALL or gaps is None:
        return b""
    if positions is Positions.BITMAP:
        return np.packbits(present, bitorder="little").tobytes()
    if positions is Positions.VARINT:
        return write_varints(gaps)
    if positions is Positions.INDEX:
        return np.flatnonzero(present).astype("<u4").tobytes()
    return rice_pack(gaps, parameter)


def _read_positions(
    positions: Positions, data: memoryview, count: int, kept: int, parameter: int
) -> npt.NDArray[np.int64] | npt.NDArray[np.bool_]:
    """Return where the `kept` of `count` entries lie: indices, or a mask."""
    if positions is Positions.BITMAP:
        require(len(data) == -(-count // 8), "a bitmap has the wrong length")
        marks = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        require(not marks[count:].any(), "a bitmap is padded with something")
        mask = marks[:count].astype(bool)
        require(int(np.count_nonzero(mask)) == kept, "a bitmap does not mark as many entries as there are values")
        return mask
    if positions is Positions.INDEX:
        require(len(data) == 4 * kept, "indices have the wrong length")
        indices = np.frombuffer(data, "<u4").astype(np.int64)
        require(kept == 0 or (indices[-1] < count and bool(np.all(np.diff(indices) > 0))), "indices are out of order")
        return indices
    if positions is Positions.VARINT:
        return _indices(read_varints(data, kept), count)
    gaps = rice_unpack(data, kept if positions is Positions.RICE else count - kept, parameter)
    where = _indices(gaps, count)
    require(parameter == rice_parameter(gaps), "gaps have another parameter than the best")
    if positions is Positions.RICE:
        return where
    mask = np.ones(count, bool)
    mask[where] = False
    return mask


def _indices(gaps: Numbers, count: int) -> npt.NDArray[np.int64]:
    """Return positions from the gaps before each; those that leave the tensor are refused, also by overflow."""
    require(not np.any(gaps >= np.uint64(max(count, 1))), "positions lie outside of the tensor")
    indices = np.cumsum(gaps + np.uint64(1)).astype(np.int64) - 1
    require(indices.size == 0 or int(indices[-1]) < count, "positions lie outside of the tensor")
    return indices


def _values(
    words: npt.NDArray[np.unsignedinteger], flat: Tensor, chosen: slice | npt.NDArray[np.bool_], grid: Grid | None
) -> bytes:
    if grid is None:
        return words[chosen].astype(f"<u{flat.element_size()}", copy=False).tobytes()
    picked = flat if isinstance(chosen, slice) else flat[torch.from_numpy(chosen)]
    signs = torch.signbit(picked).numpy().astype(np.uint64)
    numbers = signs
    if grid.width > 1:
        numbers = grid.levels(picked).to(torch.int64).numpy().astype(np.uint64) << np.uint64(1) | signs
    scale = _words(grid.scale.reshape(1)).astype(f"<u{flat.element_size()}").tobytes()
    return bytes([grid.width | grid.formula << 6]) + scale + pack(numbers, grid.width)


def _read_grid(body: memoryview, offset: int, dtype: torch.dtype) -> tuple[Grid, int]:
    end = offset + 1 + dtype.itemsize
    require(end <= len(body), "a grid is cut off")
    width, formula = body[offset] & 63, body[offset] >> 6
    require(1 <= width <= MANTISSA[dtype] and (width > 2 or formula == 0), "there is no such grid")
    word = np.frombuffer(body[offset + 1 : end], f"<u{dtype.itemsize}").astype(f"i{dtype.itemsize}")
    scale = torch.from_numpy(word).view(dtype)[0]
    require(0 < float(scale) < np.inf, "a grid has an impossible scale")
    return Grid(scale, width, formula), end


def _ungrid(numbers: Numbers, grid: Grid) -> Tensor:
    signs = torch.from_numpy((numbers & np.uint64(1)).astype(bool))
    levels = torch.ones(len(numbers)) if grid.width == 1 else torch.from_numpy((numbers >> np.uint64(1)).astype("i8"))
    magnitudes = grid.magnitudes(levels)
    return torch.where(signs, -magnitudes, magnitudes)


def _words(flat: Tensor) -> npt.NDArray[np.unsignedinteger]:
    """Return the bit patterns of a flat tensor."""
    words: npt.NDArray[np.unsignedinteger] = bits_of(flat).numpy().view(f"u{flat.element_size()}")
    return words
