"""Progress bars in the terminal: what every command's display has in common."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


class Bars:
    """A display of bars, each with a title, how far it is, what remains, and a `state` in words; a context manager.

    Args:
        console: where to draw; nothing is drawn without a terminal.
        count: column that says how far a bar is.
    """

    def __init__(self, console: Console, count: ProgressColumn) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            count,
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[state]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
