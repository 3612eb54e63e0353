"""What several commands share: options, presets with overrides, and the words they were called with."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel

from fedseal.core.errors import UsageError

DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Directory with local data sets.", envvar="FEDSEAL_DATA")
]

Config = TypeVar("Config", bound=BaseModel)


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["fedseal", *sys.argv[1:]])


def look_here_for_models() -> None:
    """Let a user's own `module:attribute` be found in the working directory, after everything installed."""
    sys.path.append(str(Path.cwd()))


def overridden(
    path: Path | None,
    package: str,
    load: Callable[[Path], Config],
    validate: Callable[..., Config],
    overrides: dict[str, Any],
) -> Config:
    """Return a scenario from a file, or from a preset without one, with the command line's options on top.

    Args:
        path: the file, if one was given.
        package: whose preset, `presets/quick.yaml`, is used without a file.
        load: reads a file.
        validate: checks plain values.
        overrides: what was given; None is left out, `a.b` reaches into a part of the scenario.
    """
    from importlib.resources import as_file, files

    if path is None:
        with as_file(files(package) / "presets" / "quick.yaml") as shipped:
            chosen = load(shipped)
    else:
        chosen = load(path)
    values = chosen.model_dump(mode="json")
    for key, value in overrides.items():
        if value is not None:
            part, _, inner = key.partition(".")
            if inner:
                values[part][inner] = value
            else:
                values[part] = value
    return validate(values, source="command line")


def numbers(text: str, kind: Any, option: str) -> list[Any]:
    """Read numbers separated by commas."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} cannot be {text!r}.", hint="Write numbers with commas between them.") from None


def default_workers(device: str) -> int:
    """Return one process per core, and one alone on a device."""
    if device != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
