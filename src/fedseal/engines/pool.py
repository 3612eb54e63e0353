"""Tasks in several worker processes, one thread each.

On two cores that is almost twice as fast as one process with two threads, and does not collapse when the machine is
busy. Workers are spawned, not forked, and end by themselves when their parent is gone, even after `kill -9`.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

from fedseal.core.errors import FedsealError, TrialError
from fedseal.core.threads import one_thread
from fedseal.core.watcher import Tick
from fedseal.engines.events import Finished, Handle, MakeWork, Progressed, Started

_POLL_SECONDS = 0.5


class PoolEngine:
    """Runs tasks in `workers` processes.

    Args:
        workers: at most this many; never more than there are tasks.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, make_work: MakeWork, tasks: Sequence[Any], handle: Handle) -> None:
        """Run all tasks and hand over events as they happen; tasks start in order and may end in any."""
        context = multiprocessing.get_context("spawn")
        pending: Any = context.Queue()
        events: Any = context.Queue()
        for item in enumerate(tasks):
            pending.put(item)
        workers = [
            context.Process(target=_serve, args=(make_work, pending, events, os.getpid()), daemon=True)
            for _ in range(min(self._workers, len(tasks)))
        ]
        try:
            for worker in workers:
                pending.put(None)
                with _deaf_to_ctrl_c():
                    worker.start()
            _collect(events, workers, len(tasks), handle)
        finally:
            pending.cancel_join_thread()  # tasks that nobody will take must not keep this process alive
            for worker in workers:
                if worker.pid is not None:
                    worker.terminate()
                    worker.join()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Start processes that ignore Ctrl-C from their first moment: it reaches the parent too, which ends them."""
    if threading.current_thread() is not threading.main_thread():  # where Python lets nobody set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _collect(events: Any, workers: Sequence[BaseProcess], tasks: int, handle: Handle) -> None:
    finished = 0
    while finished < tasks:
        try:
            event = events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            dead = [worker for worker in workers if worker.exitcode not in (None, 0)]
            if dead:
                raise TrialError(
                    f"a worker process died with exit code {dead[0].exitcode}.",
                    hint="If memory ran out, use --workers 1. Run the same command again to resume.",
                ) from None
            continue
        if isinstance(event, BaseException):
            raise event
        finished += isinstance(event, Finished)
        handle(event)


def _serve(make_work: MakeWork, pending: Any, events: Any, parent: int) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        with one_thread():
            work = make_work()
            while (item := pending.get()) is not None:
                index, task = item
                events.put(Started(index))
                result = work(task, partial(_report, events, index))
                events.put(Finished(index, result))
    except FedsealError as error:
        events.put(error)
    except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
        events.put(RuntimeError("a worker process failed:\n" + traceback.format_exc()))
    events.close()
    events.join_thread()


def _report(events: Any, index: int, tick: Tick) -> None:
    events.put(Progressed(index, tick))


def _end_with(parent: int) -> None:
    """End this process when its parent has."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
