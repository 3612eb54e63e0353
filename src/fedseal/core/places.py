"""Where data sets and weights lie on a user's machine, and in which order the places are searched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

DATA_VARIABLE = "FEDSEAL_DATA"
CACHE_VARIABLE = "FEDSEAL_CACHE"


def cache_directory() -> Path:
    """Return where fetched data and weights are kept: FEDSEAL_CACHE, else the user's cache directory.

    The directory need not exist. As the XDG rules ask, an XDG_CACHE_HOME that is not absolute is ignored.
    """
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "fedseal"


def is_cached(path: Path) -> bool:
    """Return whether a path is the cache directory, or lies in it."""
    try:
        return path.absolute().is_relative_to(cache_directory().absolute())
    except RuntimeError:  # a user without a home
        return False


def search_places(data_root: Path | None) -> list[Path]:
    """Return the directories searched for data, in order: `data_root`, FEDSEAL_DATA, the cache."""
    variable = os.environ.get(DATA_VARIABLE)
    given = [data_root, Path(variable) if variable else None, cache_directory()]
    return list(dict.fromkeys(place.expanduser() for place in given if place is not None))


def find_file(names: Sequence[str], data_root: Path | None = None) -> Path | None:
    """Return the first file called one of `names`: places outrank names, so a place's set stays whole."""
    for place in search_places(data_root):
        for name in names:
            if (place / name).is_file():
                return place / name
    return None
