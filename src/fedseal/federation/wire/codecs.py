"""One tensor as bytes: every way to say which entries are there, times two ways to write their values.

Positions: all, 32-bit indices, a bitmap, gaps between the present entries as variable-length bytes or Rice codes, or
Rice-coded gaps between the *absent* ones, for tensors with few zeros (DEFENCES.md 9; the first five are its table).
Values: raw bits, or a grid `scale * k / s` with s = 2^(b-1) - 1, as quantisers leave it (DEFENCES.md 2): sign and
magnitude in b bits each; b = 1 is sign x scale. The shortest pair is taken and named by a one-byte tag, so a tensor
that is both sparse and quantised profits twice. Nothing is lost: "absent" means all bits zero, so -0.0 and NaN
payloads survive, and a grid is used only if it reproduces every bit.

Layout of a body: number of present entries (unless all are), Rice parameter if any, values, positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

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

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_MANTISSA = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 32}
"""Most bits of a grid per dtype: beyond the mantissa, quantising is the identity (float64: as many as pay)."""
_SAMPLE = 64
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
class Grid:
    """A quantiser's grid.

    Attributes:
        scale: zero-dimensional tensor; the largest magnitude.
        width: bits per value, sign included.
        formula: which order of operations gives the very bits.
    """

    scale: Tensor
    width: int
    formula: int

    def magnitudes(self, levels: Tensor) -> Tensor:
        """Return the magnitudes of integer levels [n], in the dtype of the scale."""
        levels = levels.to(self.scale.dtype)
        return levels * self.scale if self.width == 1 else _FORMULAS[self.formula](levels, self.scale, self.steps)

    @property
    def steps(self) -> int:
        """The level of the largest magnitude, s; 1 where only signs are written."""
        return max(1, (1 << self.width - 1) - 1)

    def levels(self, values: Tensor) -> Tensor:
        """Return the nearest levels of values [n]."""
        return (values.abs().double() / self.scale.double() * self.steps).round()

    def holds(self, values: Tensor) -> bool:
        """Tell whether values [n] come back bit for bit."""
        back = torch.copysign(self.magnitudes(self.levels(values)), values)
        return torch.equal(_integers(back), _integers(values))


_FORMULAS: tuple[Callable[[Tensor, Tensor, int | Tensor], Tensor], ...] = (
    lambda levels, scale, steps: (levels.double() * (scale.double() / steps)).to(scale.dtype),
    lambda levels, scale, steps: levels / steps * scale,
    lambda levels, scale, steps: levels * scale / steps,
    lambda levels, scale, steps: levels * (scale / steps),
)
"""The same number in exact arithmetic; floating point rounds them differently, and quantisers choose freely."""


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


def plan_tensor(tensor: Tensor) -> TensorPlan:
    """Choose the shortest code of a tensor of floats, of any shape, without writing it."""
    flat = tensor.reshape(-1)
    words = _words(flat)
    present = words != 0
    kept = int(np.count_nonzero(present))
    rare = np.flatnonzero(present if 2 * kept <= flat.numel() else ~present) if kept < flat.numel() else None
    gaps = None if rare is None else (np.diff(rare, prepend=-1) - 1).astype(np.uint64)
    parameter = 0 if gaps is None else rice_parameter(gaps)
    sizes = _position_sizes(flat.numel(), kept, gaps, parameter)
    grid = find_grid(flat[torch.from_numpy(present)] if kept < flat.numel() else flat)
    best = min(_candidates(sizes, flat.numel(), kept, grid, flat.element_size()), key=lambda one: (one.size, one.tag))

    def write() -> bytes:
        head = b"" if best.positions is Positions.ALL else varint(kept)
        if best.positions in (Positions.RICE, Positions.RICE_ABSENT):
            head += bytes([parameter])
        chosen = slice(None) if best.positions is Positions.ALL or kept == flat.numel() else present
        return (
            head + _values(words, flat, chosen, best.grid) + _write_positions(best.positions, present, gaps, parameter)
        )

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
    if positions in (Positions.RICE, Positions.RICE_ABSENT):
        require(offset < len(body), "a parameter is missing")
        parameter, offset = body[offset], offset + 1
    if values is Values.GRID:
        grid, offset = _read_grid(body, offset, dtype)
        end = offset + packed_size(kept, grid.width)
        require(end <= len(body), "values are cut off")
        words = _words(_ungrid(unpack(body[offset:end], kept, grid.width), grid))
    else:
        end = offset + kept * width
        require(end <= len(body), "values are cut off")
        words = np.frombuffer(body[offset:end], f"<u{width}")
    rest = body[end:]
    if positions is Positions.ALL:
        require(len(rest) == 0, "values are followed by something")
        flat = words.astype(f"u{width}")
    else:
        where = _read_positions(positions, rest, count, kept, parameter)
        flat = np.zeros(count, f"u{width}")
        flat[where] = words
    return torch.from_numpy(flat.view(f"i{width}")).view(dtype)


def find_grid(values: Tensor) -> Grid | None:
    """Return the coarsest grid that reproduces values [n] bit for bit, or None.

    A sample decides for nearly every tensor that there is none; only what fits there is tried on all values.
    """
    if values.numel() < 2 or not 0 < float(scale := values.abs().max()) < torch.inf:
        return None
    sample = values[:: -(-values.numel() // _SAMPLE)]
    widths, steps = range(1, _MANTISSA[values.dtype] + 1), _all_steps(values.dtype)
    scaled = sample.abs().double() / scale.double() * steps[:, None]
    misfit = (scaled - scaled.round()).abs().amax(1)
    misfit[0] = (scaled[0] - 1).abs().max()  # one bit holds a sign and no zero
    near = misfit <= 4 * torch.finfo(values.dtype).eps * steps
    fitting = [width for width, fits in zip(widths, near.tolist(), strict=True) if fits]
    for width, formula in _reproducing(sample, scale, fitting):
        grid = Grid(scale, width, formula)
        if grid.holds(sample) and (sample.numel() == values.numel() or _holds_all(grid, values)):
            return grid
    return None


@cache
def _all_steps(dtype: torch.dtype) -> Tensor:
    """Return the level of the largest magnitude for every width of a dtype from 1 upwards, float64."""
    one = torch.ones(())
    return torch.tensor([Grid(one, width, 0).steps for width in range(1, _MANTISSA[dtype] + 1)], dtype=torch.float64)


def _reproducing(sample: Tensor, scale: Tensor, widths: list[int]) -> list[tuple[int, int]]:
    """Return the widths and formulas that give back a sample [n] bit for bit, coarsest first, found all at once.

    Wide grids are so fine that every value lies near a level; few then come back exactly, and each must be tried.
    """
    narrow = [(width, 0) for width in widths if width <= 2]  # one formula, and no level between zero and the largest
    wide = [width for width in widths if width > 2]
    if not wide:
        return narrow
    steps = _all_steps(sample.dtype)[[width - 1 for width in wide], None]
    levels = (sample.abs().double() / scale.double() * steps).round().to(sample.dtype)
    wanted = _integers(sample.abs())
    exact = [
        (_integers(formula(levels, scale, steps if index == 0 else steps.to(sample.dtype))) == wanted).all(1).tolist()
        for index, formula in enumerate(_FORMULAS)  # the first computes in double precision throughout
    ]
    return narrow + [(w, f) for place, w in enumerate(wide) for f in range(len(_FORMULAS)) if exact[f][place]]


def _holds_all(grid: Grid, values: Tensor) -> bool:
    if grid.width == 1:
        return bool((values.abs() == grid.scale).all())
    return all(grid.holds(part) for part in torch.split(values, 1 << 20))  # in parts: a misfit is found early


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
    if positions is Positions.RICE:
        return _indices(rice_unpack(data, kept, parameter), count)
    mask = np.ones(count, bool)
    mask[_indices(rice_unpack(data, count - kept, parameter), count)] = False
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
    require(1 <= width <= _MANTISSA[dtype] and (width > 2 or formula == 0), "there is no such grid")
    word = np.frombuffer(body[offset + 1 : end], f"<u{dtype.itemsize}").astype(f"i{dtype.itemsize}")
    scale = torch.from_numpy(word).view(dtype)[0]
    require(0 < float(scale) < np.inf, "a grid has an impossible scale")
    return Grid(scale, width, formula), end


def _ungrid(numbers: Numbers, grid: Grid) -> Tensor:
    signs = torch.from_numpy((numbers & np.uint64(1)).astype(bool))
    levels = torch.ones(len(numbers)) if grid.width == 1 else torch.from_numpy((numbers >> np.uint64(1)).astype("i8"))
    magnitudes = grid.magnitudes(levels)
    return torch.where(signs, -magnitudes, magnitudes)


def _integers(flat: Tensor) -> Tensor:
    return flat.view(_INTEGERS[flat.element_size()])


def _words(flat: Tensor) -> npt.NDArray[np.unsignedinteger]:
    """Return the bit patterns of a flat tensor."""
    words: npt.NDArray[np.unsignedinteger] = _integers(flat).numpy().view(f"u{flat.element_size()}")
    return words
