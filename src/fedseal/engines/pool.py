"""Tasks in several worker processes, one thread each.

On two cores that is almost twice as fast as one process with two threads, and does not collapse when the machine is
busy. Workers are spawned, not forked, and end by themselves when their parent is gone, even after `kill -9`. Each talks
to its parent over a pipe of its own: one that dies, in the middle of a message too, leaves an end of file and no lock.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from fedseal.core.allocator import freed_memory_kept
from fedseal.core.errors import FedsealError, StorageError, TrialError
from fedseal.core.threads import one_thread
from fedseal.core.watcher import Tick
from fedseal.engines.events import Finished, Handle, MakeWork, Progressed, Started

_POLL_SECONDS = 0.5
_LEAVING_SECONDS = 10.0


@dataclass(frozen=True)
class _Ready:
    """A worker asks for a task."""


@dataclass(frozen=True)
class _Worker:
    """A process and the parent's end of its pipe."""

    process: BaseProcess
    line: Any

    def hear(self) -> Any:
        """Return its next message; one that left in the middle of its work is an error."""
        try:
            return self.line.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            self.process.join(_LEAVING_SECONDS)
            code = self.process.exitcode
            raise TrialError(
                f"a worker process died with exit code {code} in the middle of its work.",
                hint="If memory ran out, use --workers 1. Run the same command again to resume.",
            ) from None


class PoolEngine:
    """Runs tasks in `workers` processes.

    Args:
        workers: at most this many; never more than there are tasks.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, make_work: MakeWork, tasks: Sequence[Any], handle: Handle) -> None:
        """Run all tasks and hand over events as they happen; tasks start in order and may end in any."""
        crew: list[_Worker] = []
        try:
            for _ in range(min(self._workers, len(tasks))):
                crew.append(_hire(make_work))
            _serve_all(crew, deque(enumerate(tasks)), len(tasks), handle)
        finally:
            for worker in crew:
                worker.process.terminate()
            for worker in crew:
                worker.process.join()
                worker.line.close()


def _hire(make_work: MakeWork) -> _Worker:
    """Start a worker; it alone holds the other end of its pipe, so that the pipe ends with it."""
    context = multiprocessing.get_context("spawn")
    try:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(make_work, theirs, os.getpid()), daemon=True)
        with _deaf_to_ctrl_c():
            process.start()
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"a worker process cannot be started: {reason}.", hint="Use --workers 1.") from error
    theirs.close()
    return _Worker(process, ours)


def _serve_all(crew: Sequence[_Worker], waiting: deque[tuple[int, Any]], tasks: int, handle: Handle) -> None:
    """Give workers tasks as they ask for them, until every result is there."""
    by_line = {worker.line: worker for worker in crew}
    finished = 0
    while finished < tasks:
        for line in wait(list(by_line)):
            match by_line[line].hear():
                case _Ready() if waiting:
                    _send(line, waiting.popleft())
                case _Ready():
                    _send(line, None)
                    del by_line[line]
                case BaseException() as error:
                    raise error
                case event:
                    finished += isinstance(event, Finished)
                    handle(event)


def _send(line: Any, message: Any) -> None:
    """Send to somebody who may be gone: the parent's next `hear` tells of a lost worker, and nobody hears an orphan."""
    try:
        line.send(message)
    except (BrokenPipeError, ConnectionResetError):
        return


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


def _serve(make_work: MakeWork, line: Connection, parent: int) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        with one_thread(), freed_memory_kept():
            work = make_work()
            while True:
                line.send(_Ready())
                item = line.recv()
                if item is None:
                    break
                index, task = item
                line.send(Started(index))
                line.send(Finished(index, work(task, partial(_report, line, index))))
    except FedsealError as error:
        _send(line, error)
    except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
        _send(line, RuntimeError("a worker process failed:\n" + traceback.format_exc()))
    line.close()


def _report(line: Connection, index: int, tick: Tick) -> None:
    line.send(Progressed(index, tick))


def _end_with(parent: int) -> None:
    """End this process when its parent has."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
