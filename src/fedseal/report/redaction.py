"""A run as it may be handed on: every report of a redacted run is made of this one and nothing else.

It names no file with pictures, so that none can be opened, and holds no text that tells of private data
(`fedseal.store.redaction`).
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from fedseal.audit.run import Run
from fedseal.store.redaction import WITHHELD, redacted_finding, redacted_reading, redacted_record

_PRIVATE_OPTIONS = ("--labels", "--original")
"""Options that take private facts, or the names of files that hold them."""


def redacted_run(run: Run) -> Run:
    """Return the run without pictures and without what was said of private data; scores and levels are the same."""
    return replace(
        run,
        records=tuple(redacted_record(record) for record in run.records),
        readings=tuple(redacted_reading(reading) for reading in run.readings),
        findings={name: tuple(redacted_finding(one) for one in found) for name, found in run.findings.items()},
        command=redacted_command(run.command),
    )


def redacted_command(command: str) -> str:
    """Return a command with the values of options that name private things taken out."""
    try:
        words = shlex.split(command)
    except ValueError:  # not a command line: nobody can tell its options apart
        return WITHHELD if any(option in command for option in _PRIVATE_OPTIONS) else command
    kept = []
    for previous, word in zip(["", *words], words, strict=False):
        name, assigned, _ = word.partition("=")
        if previous in _PRIVATE_OPTIONS:
            kept.append(WITHHELD)
        elif assigned and name in _PRIVATE_OPTIONS:
            kept.append(f"{name}={WITHHELD}")
        else:
            kept.append(word)
    return command if kept == words else shlex.join(kept)
