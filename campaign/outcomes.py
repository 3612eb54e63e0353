"""What can come of one attempt, and how it is watched: refused in words or taken is right, everything else is not."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedseal.core.errors import FedsealError

SECONDS = 20
"""Of computing, after which an attempt hangs; a busy machine is not its fault."""
PATIENCE = 900
"""Seconds after which one hangs that does not even compute."""
MEMORY = 3 << 30
"""Bytes beyond which an attempt has taken too much."""
WRONG = ("traceback", "hang", "memory", "code executed", "silently wrong")


class Hang(BaseException):
    """Raised by the clock; no handler of ours catches it."""


@dataclass
class Tally:
    """How often what happened, by part, with the first example of each thing that must not."""

    name: str
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, part: str, outcome: str, example: str = "") -> None:
        """Count one attempt."""
        self.counts[part, outcome] += 1
        if outcome in WRONG and (part, outcome) not in self.examples:
            self.examples[part, outcome] = example
            sys.stderr.write(f"{self.name}, {part}: {outcome}\n{example}\n")

    @property
    def tried(self) -> int:
        """How many attempts there were."""
        return sum(self.counts.values())

    def of(self, outcome: str) -> int:
        """How many of them ended so."""
        return sum(count for (_, ended), count in self.counts.items() if ended == outcome)

    @property
    def wrong(self) -> int:
        """How many ended as they must not."""
        return sum(self.of(outcome) for outcome in WRONG)


def attempt(
    tally: Tally, part: str, action: Callable[[], Any], *, check: Callable[[Any], str | None] | None = None
) -> None:
    """Do something hostile and count what comes of it.

    Args:
        tally: where to count.
        part: what is tried.
        action: the attempt.
        check: says what is wrong with a result that was taken; None for nothing.
    """
    canary = Path(tempfile.gettempdir()) / f"fedseal-canary-{os.getpid()}"
    canary.unlink(missing_ok=True)
    os.environ["FEDSEAL_CANARY"] = str(canary)
    outcome, example = "taken", ""
    before = _peak()
    try:
        with _clock(), warnings.catch_warnings(), open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
            warnings.simplefilter("ignore")
            result = action()
            wrong = check(result) if check is not None else None
            if wrong is not None:
                outcome, example = "silently wrong", wrong
    except FedsealError as error:
        outcome = "refused" if str(error).strip() else "traceback"
    except Hang:
        outcome, example = "hang", "".join(traceback.format_exc(limit=-3))
    except MemoryError:
        outcome, example = "memory", "".join(traceback.format_exc(limit=-3))
    except Exception:  # noqa: BLE001 - this is what is counted
        outcome, example = "traceback", "".join(traceback.format_exc(limit=-4))
    if _peak() - before > MEMORY:
        outcome, example = "memory", f"{(_peak() - before) / 2**30:.1f} GiB"
    if canary.exists():
        outcome, example = "code executed", "the canary was touched"
    tally.add(part, outcome, example)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def _clock() -> Iterator[None]:
    def ring(number: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring), signal.signal(signal.SIGPROF, ring)
    signal.alarm(PATIENCE)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGPROF, before[1])
