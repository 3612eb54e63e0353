"""One file per trained thing: safetensors, with a header that says what it is and what made it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_safetensors

from fedseal.core.errors import InputError
from fedseal.core.files import OPEN, PRIVATE, write_atomically
from fedseal.core.tensors import check_finite
from fedseal.core.trainable import Saved
from fedseal.federation.tensor_file import read_tensors

_KEY = "fedseal.prepared"
_FORMAT = 1
_WAY_OUT = "Delete it, or run `fedseal prepare --prune`."
SUFFIX, UNFINISHED = ".safetensors", ".unfinished.safetensors"


@dataclass(frozen=True)
class Header:
    """What a file says of itself.

    Attributes:
        identity: of what was trained.
        title: in words.
        modules, code, torch: the code that trained it and its digest, by which the library knows what is outdated.
        seconds: training took so far.
        done, size: how far it is, of how far it goes.
    """

    identity: str
    title: str
    modules: Sequence[str]
    code: str
    torch: str
    seconds: float
    done: float
    size: float


def write(path: Path, header: Header, content: Saved, *, private: bool) -> None:
    """Write a file whole or not at all; a private one can be read by its owner only."""
    words = json.dumps({"format": _FORMAT, "header": asdict(header), "values": dict(content.values)})
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in content.tensors.items()}
    write_atomically(path, to_safetensors(tensors, {_KEY: words}), mode=PRIVATE if private else OPEN)


def read(path: Path) -> tuple[Header, Saved]:
    """Read a file, or refuse it with what is wrong with it."""
    held = read_tensors(path, "prepared file")
    try:
        found: Any = json.loads(held.metadata[_KEY])
        if found["format"] != _FORMAT:
            raise ValueError(f"format {found['format']!r}")
        header = Header(**found["header"])
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in (header.seconds, header.done, header.size)):
            raise ValueError("its figures are none")
        if not isinstance(header.identity, str) or not isinstance(found["values"], dict):
            raise ValueError("not the header of a prepared file")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not something that was prepared: {error}.", hint=_WAY_OUT) from error
    try:
        check_finite({n: t for n, t in held.tensors.items() if t.is_floating_point()}, f"prepared file {path}")
    except InputError as error:
        raise InputError(error.message, hint=_WAY_OUT) from error
    return header, Saved(held.tensors, found["values"])
