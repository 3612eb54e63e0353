"""What engines share: how work is described, and the events they hand over while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedseal.core.watcher import Report, Tick

Work: TypeAlias = Callable[[Any, Report], Any]
"""Maps a task to its result, reporting on the way."""

MakeWork: TypeAlias = Callable[[], Work]
"""Builds the work once per process; must be picklable for a pool."""


@dataclass(frozen=True)
class Started:
    """Task `index` is running."""

    index: int


@dataclass(frozen=True)
class Progressed:
    """Task `index` told how it goes."""

    index: int
    report: Tick


@dataclass(frozen=True)
class Finished:
    """Task `index` ended with a result."""

    index: int
    result: Any


Event: TypeAlias = Started | Progressed | Finished

Handle: TypeAlias = Callable[[Event], None]
"""Takes events as they happen, in the process that runs the engine."""
