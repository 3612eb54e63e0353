"""How much memory something from outside may ask for, checked before any of it is taken.

`FEDSEAL_MEMORY` sets it, as `16G` or in bytes; without it, half of what the machine has, and 8 GiB at most.
"""

from __future__ import annotations

import os
import re
from functools import cache

from fedseal.core.errors import InputError, UsageError

VARIABLE = "FEDSEAL_MEMORY"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOST = 8 << 30


def memory_limit() -> int:
    """Return how many bytes may be asked for at once."""
    text = os.environ.get(VARIABLE)
    if not text:
        return _default()
    match = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"{VARIABLE} cannot be {text!r}.", hint="Write a size such as 16G.")
    return int(match[1]) * _UNITS[match[2].upper()]


def check_memory(size: int, what: str) -> None:
    """Refuse what would take more memory than is allowed."""
    if size > (limit := memory_limit()):
        raise InputError(
            f"{what} would take {_words(size)} of memory, {_words(limit)} are allowed.",
            hint=f"Use less of it, or raise the limit: {VARIABLE}=16G.",
        )


@cache
def _default() -> int:
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return _MOST
    return min(_MOST, max(whole // 2, 1 << 30))


def _words(size: int) -> str:
    if size >= 1 << 60:
        return "more than an exbibyte"
    unit = next(unit for unit in ("T", "G", "M", "K", "") if size >= _UNITS[unit] or not unit)
    return f"{size / _UNITS[unit]:.4g} {unit + 'i' if unit else ''}B"
