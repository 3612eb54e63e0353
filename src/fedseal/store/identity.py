"""The files a spec names, by content: two runs with other weights under the same path are two runs."""

from __future__ import annotations

import hashlib
import typing
from pathlib import Path
from typing import Any

from fedseal.core.defence import DEFENCES
from fedseal.core.registry import parse_spec
from fedseal.defences.pipeline import split_pipeline


def file_hashes(defence: str) -> dict[str, str]:
    """Return the SHA-256 of every file a defence's spec names, by its path; empty if there is none."""
    found: dict[str, str] = {}
    for part in split_pipeline(defence):
        spec = parse_spec(part)
        parameters = DEFENCES.entry(spec.name).parameters
        given = dict(spec.options)
        if spec.argument is not None and parameters:
            given[next(iter(parameters))] = spec.argument
        for key, value in given.items():
            if key in parameters and _is_path(parameters[key].annotation) and Path(value).expanduser().is_file():
                found[str(value)] = hashlib.sha256(Path(value).expanduser().read_bytes()).hexdigest()
    return found


def _is_path(annotation: Any) -> bool:
    return Path in (annotation, *typing.get_args(annotation))
