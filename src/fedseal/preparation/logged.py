"""Progress of a long preparation in the log, where there is no terminal: a client inside of a federation."""

from __future__ import annotations

import logging
import time

from fedseal.core.watcher import Task, Tick, Watcher

_LOG = logging.getLogger("fedseal.prepare")
LONG = 60.0
"""Seconds of work from which on it is a warning: a round that stands still looks like a failure."""


class LoggedProgress(Watcher):
    """Says how long a preparation will take once that is known, then how far it is, twice a minute at most.

    Args:
        hint: how to make it shorter, said of what takes long.
        every: seconds from one line to the next.
    """

    def __init__(self, hint: str = "", every: float = 30.0) -> None:
        self._hint, self._every = hint, every
        self._begun: dict[str, tuple[float, float]] = {}
        self._said: dict[str, float] = {}

    def started(self, task: Task) -> None:
        """Note the time."""
        self._begun[task.key] = time.perf_counter(), task.begun
        _LOG.info("%s: begun at %g of %g", task.title, task.begun, task.size)

    def advanced(self, task: Task, tick: Tick) -> None:
        """Say how far it is, and how long the rest will take."""
        start, begun = self._begun.get(task.key, (time.perf_counter(), 0.0))
        now = time.perf_counter()
        if tick.done <= begun or (task.key in self._said and now - self._said[task.key] < self._every):
            return
        left = (now - start) / (tick.done - begun) * (task.size - tick.done)
        first = task.key not in self._said
        self._said[task.key] = now
        level = logging.WARNING if first and left > LONG else logging.INFO
        hint = f" It is kept, and found again in later rounds.{self._hint}" if level == logging.WARNING else ""
        _LOG.log(level, "%s: %g of %g, about %.0f s left.%s", task.title, tick.done, task.size, left, hint)

    def finished(self, task: Task, count: int) -> None:
        """Say that it is done."""
        start, _ = self._begun.get(task.key, (time.perf_counter(), 0.0))
        _LOG.info("%s: done in %.1f s", task.title, time.perf_counter() - start)
