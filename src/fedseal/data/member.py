"""An array in a numpy archive that is read from front to back, a part at a time, because the whole may not fit."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedseal.core.errors import InputError

_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_TOGETHER = 256
"""Rows that are read at once."""


@dataclass(frozen=True)
class Member:
    """What an array's header says.

    Attributes:
        path: of the archive.
        key: its name there.
        shape: of the whole array.
        dtype: of its entries.
        by_columns: whether it lies in Fortran's order, in which rows are nowhere together.
    """

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool

    @property
    def size(self) -> int:
        """Bytes it takes in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def parts(self) -> Iterator[NDArray[Any]]:
        """Yield the rows, some hundred at a time."""
        if self.by_columns or self.dtype.hasobject or not self.shape:
            raise InputError(
                f"{self.path}: array {self.key!r} does not fit into memory and cannot be read row by row.",
                hint="Save it with numpy.savez after numpy.ascontiguousarray.",
            )
        row = self.size // max(1, self.shape[0])
        with zipfile.ZipFile(self.path) as archive, archive.open(_inside(archive, self.key)) as file:
            _header(file)
            for first in range(0, self.shape[0], _TOGETHER):
                count = min(_TOGETHER, self.shape[0] - first)
                content = file.read(count * row)
                if len(content) != count * row:
                    raise InputError(
                        f"{self.path}: array {self.key!r} ends after {first + len(content) // max(1, row):,} of "
                        f"{self.shape[0]:,} rows.",
                        hint="Write the file again.",
                    )
                yield np.frombuffer(content, dtype=self.dtype).reshape(count, *self.shape[1:])


def member_of(path: Path, archive: Any, key: str) -> Member | None:
    """Return what is known of an array of an opened archive; None where it has no header that can be read.

    Args:
        path: of the archive.
        archive: numpy's `NpzFile`.
        key: of the array.
    """
    with archive.zip.open(_inside(archive.zip, key)) as file:
        header = _header(file)
    return None if header is None else Member(path, key, *header)


def _inside(archive: zipfile.ZipFile, key: str) -> str:
    """Return the file of an array in the archive."""
    return f"{key}.npy" if f"{key}.npy" in archive.namelist() else key


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], bool] | None:
    """Return shape, type and order of a .npy file open at its start; None where numpy will say what is wrong."""
    try:
        shape, by_columns, dtype = _READERS[np.lib.format.read_magic(file)](file)
    except (KeyError, ValueError, EOFError):
        return None
    return shape, dtype, by_columns
