"""Tasks one after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedseal.engines.events import Event, Finished, MakeWork, Progressed, Started


class LocalEngine:
    """Runs tasks in order and yields events; reports of a task are yielded together when it ends."""

    def run(self, make_work: MakeWork, tasks: Sequence[Any]) -> Iterator[Event]:
        """Run all tasks."""
        work = make_work() if tasks else None
        for index, task in enumerate(tasks):
            assert work is not None
            yield Started(index)
            reports: list[Any] = []
            result = work(task, reports.append)
            yield from (Progressed(index, report) for report in reports)
            yield Finished(index, result)
