"""Who watches long work, for display: audits, trainings, trade-offs and preparations tell the same five things.

Inside of one attack a `core.attack.Listener` hears of images, inside of one federation a `RoundListener` of rounds;
whoever runs them speaks to a `Watcher`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["problem", "warning", "note"]


@dataclass(frozen=True)
class Task:
    """A piece of the work, with a bar of its own.

    Attributes:
        title: in words.
        size: how far it goes, in the unit of `Tick.done`.
        begun: how far it was when it was taken up.
        key: tells tasks of one title apart.
    """

    title: str
    size: float = 1.0
    begun: float = 0.0
    key: str = ""


@dataclass(frozen=True)
class Tick:
    """How a running task goes.

    Attributes:
        done: of its size.
        readings: what was measured on the way, by name: `psnr_db`, `accuracy`, `loss`.
    """

    done: float
    readings: Mapping[str, float] = field(default_factory=dict)


Report: TypeAlias = Callable[[Tick], None]
"""Told how one task goes."""


class Watcher:
    """Watches work; it can change nothing. This one looks away.

    Example:
        >>> import fedseal, tempfile
        >>> class Counting(fedseal.Watcher):
        ...     def planned(self, what, total, done):
        ...         print(f"{total} {what}, {done} done already")
        ...     def finished(self, task, count):
        ...         print(task.title)
        >>> run = fedseal.audit(
        ...     data="faces:size=8", attacks="ig:iterations=2", targets=1, out=tempfile.mkdtemp(), watcher=Counting()
        ... )
        1 trials, 0 done already
        ig:iterations=2 on none
        ideal reading of none
    """

    def planned(self, what: str, total: int, done: int) -> None:
        """Take how many units of work there are (`trials`, `trainings`, ...), and how many need not be done again."""

    def remarked(self, severity: Severity, text: str) -> None:
        """Take something a person should read now."""

    def started(self, task: Task) -> None:
        """Take a task that starts, or goes on."""

    def advanced(self, task: Task, tick: Tick) -> None:
        """Take how far a running task is."""

    def finished(self, task: Task, count: int) -> None:
        """Take a task that ended, and how many units of the plan it was."""
