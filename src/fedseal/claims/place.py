"""Where experiments run, and leave what they found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedseal.audit.runner import EngineName
from fedseal.core.watcher import Watcher


@dataclass(frozen=True)
class Place:
    """Where experiments run and leave what they found.

    Attributes:
        directory: of one check; the same one resumes.
        data_root: where local data sets lie.
        workers, engine, address, watcher: as those of `run_audit`.
    """

    directory: Path
    data_root: Path | None = None
    workers: int = 1
    engine: EngineName = "local"
    address: str | None = None
    watcher: Watcher | None = None
