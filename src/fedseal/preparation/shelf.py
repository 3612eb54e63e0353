"""What lies in a library: a list for people, and what can be thrown away."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from fedseal.core.errors import FedsealError
from fedseal.core.files import storage_error
from fedseal.core.sources import code_digest, is_here
from fedseal.preparation.files import SUFFIX, UNFINISHED, Header, read

State: TypeAlias = Literal["ready", "unfinished", "outdated", "foreign", "damaged", "leftover"]
"""`outdated`: made by an earlier version of the code, or with another PyTorch, so that nothing asks for it any more;
`foreign`: made by code that is not to be found from here, so that nobody can tell; `leftover`: a temporary file of a
process that was killed while it wrote."""

_LEFTOVER_SECONDS = 3600.0
_FORMER = ("seer", "lids")


@dataclass(frozen=True)
class Item:
    """One file of a library.

    Attributes:
        kind: of the trainable.
        title: in words.
        state: see `State`.
        progress: the share of training that is done.
        seconds: training took.
        size: in bytes.
        path: of the file.
    """

    kind: str
    title: str
    state: State
    progress: float
    seconds: float
    size: int
    path: Path


def items(directory: Path) -> list[Item]:
    """Return what lies below a library's directory, by kind and title."""
    found = [_item(path) for path in directory.glob(f"*/*{SUFFIX}*") if path.is_file()]
    return sorted(found, key=lambda item: (item.kind, item.title, str(item.path)))


def prune(directory: Path, cache: Path | None = None) -> list[Item]:
    """Delete what nothing can find any more, or is damaged or left over, and return it.

    Args:
        directory: of a library.
        cache: where fedseal 0.1 kept such things, each in a directory of its kind; these are deleted too.
    """
    gone = [item for item in items(directory) if item.state in ("outdated", "damaged") or _is_old_leftover(item)]
    old = [] if cache is None else [path for kind in _FORMER for path in (cache / kind).glob(f"*{SUFFIX}")]
    gone += [Item(path.parent.name, path.name, "outdated", 1.0, 0.0, path.stat().st_size, path) for path in old]
    for item in gone:
        try:
            item.path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(item.path, error) from error
    return gone


def _item(path: Path) -> Item:
    kind, size = path.parent.name, path.stat().st_size
    if path.name.startswith("."):
        return Item(kind, path.name, "leftover", 0.0, 0.0, size, path)
    try:
        header, _ = read(path)
        state = _state(header, path)
        progress = header.done / header.size if header.size else 1.0
    except (FedsealError, TypeError, AttributeError):  # a header may hold anything in the place of names and numbers
        return Item(kind, path.name, "damaged", 0.0, 0.0, size, path)
    return Item(kind, str(header.title), state, progress, header.seconds, size, path)


def _state(header: Header, path: Path) -> State:
    if not all(is_here(module) for module in header.modules):
        return "foreign"
    if header.code != code_digest(header.modules) or header.torch != torch.__version__:
        return "outdated"
    return "unfinished" if path.name.endswith(UNFINISHED) else "ready"


def _is_old_leftover(item: Item) -> bool:
    """Return whether a temporary file is older than any write takes; a younger one may be somebody's who writes."""
    return item.state == "leftover" and time.time() - item.path.stat().st_mtime > _LEFTOVER_SECONDS
