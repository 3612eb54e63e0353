"""Tasks one after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fedseal.core.allocator import freed_memory_kept
from fedseal.core.threads import one_thread
from fedseal.core.watcher import Tick
from fedseal.engines.events import Finished, Handle, MakeWork, Progressed, Started


class LocalEngine:
    """Runs tasks in order."""

    def run(self, make_work: MakeWork, tasks: Sequence[Any], handle: Handle) -> None:
        """Run all tasks and hand over events as they happen."""
        if not tasks:
            return
        with one_thread(), freed_memory_kept():
            work = make_work()
            for index, task in enumerate(tasks):
                handle(Started(index))
                handle(Finished(index, work(task, partial(_report, handle, index))))


def _report(handle: Handle, index: int, tick: Tick) -> None:
    handle(Progressed(index, tick))
