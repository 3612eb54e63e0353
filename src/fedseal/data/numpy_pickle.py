"""Plain float32 arrays out of a pickle, with nothing else able to run.

Unpickling calls whatever the file names. Here the few names that numpy's arrays use are answered by inert
stand-ins that only collect shape, dtype and bytes, any other name is refused, and the arrays are built afterwards
from what was collected: not even numpy's code sees the file's arguments.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseal.core.errors import InputError

Floats = NDArray[np.float32]

_MALFORMED = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str = "", *flags: object) -> None:
        self.code, self.order = code, ""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


class _Array:
    """Stands in for the array under construction."""

    def __init__(self, *arguments: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def build(self) -> Floats:
        _, shape, dtype, column_major, data = self.state
        if not isinstance(dtype, _Dtype) or (dtype.order, dtype.code) != ("<", "f4"):
            raise ValueError("an array is not float32")
        if not isinstance(data, bytes) or len(data) != 4 * prod(shape):
            raise ValueError("an array's bytes do not fill its shape")
        return np.frombuffer(data, "<f4").reshape(shape, order="F" if column_major else "C")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not part of an array")
        return _STAND_INS[module, name]


def read_arrays(content: bytes, where: str) -> dict[str, Floats]:
    """Return the float32 arrays of a pickled, nested dictionary, keyed by their path such as `net/conv/kernel`.

    Args:
        content: the pickle.
        where: its origin, for messages.
    """
    try:
        _check_memo(content)
        return dict(_walk(_Unpickler(io.BytesIO(content)).load(), ()))
    except _MALFORMED as error:
        raise InputError(
            f"{where} is not a plain dictionary of float arrays: {error}.",
            hint="Do not trust this file; delete it.",
        ) from error


def _check_memo(content: bytes) -> None:
    """Refuse a place in the memo that no file of this length can reach: the unpickler would reserve all before it."""
    for code, argument, _ in pickletools.genops(content):
        if code.name in {"PUT", "BINPUT", "LONG_BINPUT"} and int(argument or 0) > len(content):
            raise ValueError(f"it asks for {argument:,} places in a memo")


def _walk(value: Any, path: tuple[str, ...]) -> list[tuple[str, Floats]]:
    if isinstance(value, _Array):
        return [("/".join(path), value.build())]
    if not isinstance(value, dict):
        raise ValueError(f"{'/'.join(path) or 'its top'} is a {type(value).__name__}")
    return [found for key, part in value.items() for found in _walk(part, (*path, str(key)))]
