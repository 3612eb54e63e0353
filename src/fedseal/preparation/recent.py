"""What was made or read a moment ago: one bounded memory for everything that a process need not make twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")

_KEPT = 24
_recent: OrderedDict[tuple[str, str], Any] = OrderedDict()


def remembered(kind: str, identity: str, make: Callable[[], T], *, most: int = 8) -> T:
    """Return what `make` returned for this identity, calling it if that was too long ago; the oldest are forgotten.

    Args:
        kind: of what is remembered.
        identity: hash of all that determines it.
        make: makes it, or reads it from the library.
        most: of this kind to remember; fewer for what is large.
    """
    key = (kind, identity)
    if key not in _recent:
        made = make()  # which may remember other things itself
        alike = [other for other in _recent if other[0] == kind]
        for other in alike[: max(0, len(alike) - most + 1)]:
            del _recent[other]
        _recent[key] = made
        while len(_recent) > _KEPT:
            _recent.popitem(last=False)
    _recent.move_to_end(key)
    return cast(T, _recent[key])


def forget() -> None:
    """Forget everything, as a new process would."""
    _recent.clear()
