"""The command in a process of its own, forked from this one: nothing is imported again, so that many can be tried."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedseal.cli import main


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit code, negative for a signal, and what it said on stderr."""

    code: int
    said: str


@dataclass
class Child:
    """A running command."""

    pid: int
    errors: BinaryIO
    code: int | None = None

    def wait(self, seconds: float) -> bool:
        """Return whether it ended within so many seconds."""
        deadline = time.monotonic() + seconds
        while self.code is None and time.monotonic() < deadline:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.02)
        return self.code is not None

    def send(self, number: int) -> None:
        """Send it a signal."""
        if self.code is None:
            os.kill(self.pid, number)

    def ended(self) -> Ended:
        """Return what it left; it must have ended."""
        assert self.code is not None
        self.errors.seek(0)
        return Ended(self.code, self.errors.read().decode("utf-8", "replace"))


def start(words: Sequence[str], place: Path, environment: Mapping[str, str] | None = None) -> Child:
    """Run `fedseal` with these words in a directory, as the leader of a session of its own."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - the child writes it, the parent reads it later
    pid = os.fork()
    if pid:
        return Child(pid, errors)
    code = 70
    try:
        os.setsid()
        os.chdir(place)
        os.dup2(errors.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.update(environment or {})
        sys.argv = ["fedseal", *words]
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    finally:
        sys.stderr.flush()
        os._exit(code)
