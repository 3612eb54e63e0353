"""Work in the terminal: a bar for all of it, and one per running task with what it reads on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fedseal.core.watcher import Severity, Task, Tick, Watcher
from fedseal.report.words import duration

HEARTBEAT_SECONDS = 30.0
"""Longest silence in a log while something runs."""

_STYLES: dict[Severity, str] = {"problem": "red", "warning": "yellow", "note": "dim"}
_WORDS = {
    "psnr_db": "{:.1f} dB",
    "tokens": "{:.0f} % of tokens, fillers too",
    "accuracy": "accuracy {:.1%}",
    "loss": "loss {:.4g}",
}


class TerminalProgress(Watcher):
    """A watcher that draws with Rich; use it as a context manager.

    Args:
        console: where to draw; without a terminal a line is printed per finished task instead, and one of what runs
            whenever nothing was said for a while, so that a log shows life.
        heartbeat: seconds of that while; a thread counts them, as a task may report nothing until it ends.
    """

    def __init__(self, console: Console, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        self._console, self._heartbeat = console, heartbeat
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[state]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all: TaskID | None = None
        self._running: dict[Task, TaskID] = {}
        self._read: dict[Task, str] = {}
        self._reached: dict[Task, float] = {}
        self._taken_up: dict[Task, float] = {}
        self._what, self._total, self._done = "", 0, 0
        self._begun = self._spoke = time.monotonic()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        if not self._console.is_terminal:
            self._begun = self._spoke = time.monotonic()
            self._ticker = threading.Thread(target=self._beat, name="fedseal-heartbeat", daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()
        self._progress.stop()

    def planned(self, what: str, total: int, done: int) -> None:
        """Show how much there is to do; a second plan takes the place of the first."""
        if self._all is not None:
            self._progress.remove_task(self._all)
        self._what, self._total, self._done = what, total, done
        self._all = self._progress.add_task(f"all {what}", total=total, completed=done, state="")
        if done:
            self._console.print(f"{done} of {total} {what} are in the store already.", style="dim")

    def remarked(self, severity: Severity, text: str) -> None:
        """Print a remark."""
        self._spoke = time.monotonic()
        self._console.print(f"[{_STYLES[severity]}]{severity}[/]: {escape(text)}", soft_wrap=True)

    def started(self, task: Task) -> None:
        """Add a bar for the task."""
        title = f"  {escape(task.title)}"
        self._running[task] = self._progress.add_task(title, total=task.size, state="")
        self._progress.update(self._running[task], completed=task.begun)
        self._taken_up[task] = time.monotonic()

    def advanced(self, task: Task, tick: Tick) -> None:
        """Move the task's bar and show what it read last."""
        if tick.readings:
            self._read[task] = ", ".join(_words(name, value) for name, value in tick.readings.items())
        self._reached[task] = tick.done
        self._progress.update(self._running[task], completed=tick.done, state=self._read.get(task, ""))

    def _beat(self) -> None:
        """Say what runs whenever nothing was said for a heartbeat, until the work ends."""
        while not self._ended.wait(max(self._spoke + self._heartbeat - time.monotonic(), 0.01)):
            if time.monotonic() - self._spoke < self._heartbeat:
                continue
            running = list(self._running)
            try:
                self._say(self._status(running), self._read.get(running[0], "") if running else "")
            except (OSError, ValueError):
                return  # nobody reads any more, which the work itself will meet with its next line

    def _status(self, running: Sequence[Task]) -> str:
        if not running:
            return f"at work for {duration(time.monotonic() - self._begun)}"
        first = running[0]
        spent = duration(time.monotonic() - self._taken_up.get(first, self._begun))
        reached = self._reached.get(first)
        share = f"{reached / first.size:.0%} of " if reached and first.size else ""
        others = f" and {len(running) - 1} more" if len(running) > 1 else ""
        return f"{share}{first.title}{others}, at work for {spent}"

    def _say(self, what: str, read: str) -> None:
        """Print a line where there is no terminal to draw in."""
        self._spoke = time.monotonic()
        plan = f"{self._done}/{self._total} {self._what}, " if self._total else ""
        line = plan + what + (f": {read}" if read else "")
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def finished(self, task: Task, count: int) -> None:
        """Count a task's share of the plan as done."""
        self._done += count
        self._progress.remove_task(self._running.pop(task))
        self._reached.pop(task, None)
        self._taken_up.pop(task, None)
        read = self._read.pop(task, "")
        if self._all is not None:
            self._progress.update(self._all, completed=self._done)
        if not self._console.is_terminal:
            self._say(task.title, read)


def _words(name: str, value: float) -> str:
    return _WORDS.get(name, name.replace("_", " ") + " {:.4g}").format(value)
