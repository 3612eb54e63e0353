"""Where experiments run, and leave what they found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedseal.audit.factors import scenarios_of
from fedseal.audit.run import Run
from fedseal.audit.runner import EngineName, run_audit
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

    def audit(self, values: dict[str, Any]) -> Run:
        """Run what is left of an audit, given as plain values, in this directory."""
        return run_audit(
            scenarios_of(values, command="claims run"),
            self.directory,
            data_root=self.data_root,
            workers=self.workers,
            engine=self.engine,
            address=self.address,
            command="fedseal claims run",
            watcher=self.watcher,
        )
