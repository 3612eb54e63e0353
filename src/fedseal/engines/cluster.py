"""Tasks on a Ray cluster (extra `ray`): this machine's cores, or all machines of a cluster that runs already.

Ray has the scheduling, the retries and the growing and shrinking of clusters; fedseal has none of it. A task runs in
one process with one thread, as in every engine. What tasks share is put into Ray's object store once and fetched once
per node (`parcels`). A task whose worker or node dies is run again elsewhere; the driver alone hands results over, so a
driver that is killed loses what was in flight and nothing else.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from fedseal.core.allocator import freed_memory_kept
from fedseal.core.errors import FedsealError, InputError, TrialError, UsageError
from fedseal.core.threads import one_thread
from fedseal.core.watcher import Tick
from fedseal.engines.events import Finished, Handle, MakeWork, Progressed, Started, Work
from fedseal.engines.parcels import Packing, unpack

RETRIES = 5
"""Times a task is run again whose worker or node died."""
_WINDOW = 1000
"""Tasks given to Ray at a time: enough for any cluster to grow by, few enough to keep in memory."""
_POLL_SECONDS = 0.2
_TELL_SECONDS = 0.5
"""The least time between two reports of one task."""
_REACH_SECONDS = 5.0
"""Time a cluster has to take a connection."""
_KEPT_WORKS = 2
_ALIKE = "Install the same fedseal and the modules of your scenario on every node, or use Ray's working_dir."
_UNLOADABLE = ("ModuleNotFoundError: ", "ImportError: ", "AttributeError: ")
"""How an error begins that Ray passes on where it cannot unpickle a task."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayEngine:
    """Runs tasks on a cluster.

    Args:
        address: `auto` for the cluster this machine belongs to, `HOST:PORT`, `ray://HOST:PORT` for one it does not
            belong to; None starts one of this machine's own and stops it at the end. Where the process is connected
            already, that connection is used and left.
        workers: tasks at once on a cluster of one's own.
    """

    def __init__(self, address: str | None = None, workers: int = 1) -> None:
        self._address = address
        self._workers = workers

    def run(self, make_work: MakeWork, tasks: Sequence[Any], handle: Handle) -> None:
        """Run all tasks and hand over events as they happen; tasks start in order and may end in any."""
        if not tasks:
            return
        ray = _load()
        own = not ray.is_initialized()
        if own:
            _connect(ray, self._address, self._workers)
        try:
            _Driver(ray, make_work).run(tasks, handle)
        finally:
            if own:
                ray.shutdown()


def _load() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise UsageError("--engine ray needs Ray.", hint="Install it: pip install 'fedseal[ray]'.") from error
    return ray


def check_reachable(address: str) -> None:
    """Refuse an address that is none, or where nothing listens: Ray itself would wait there for minutes."""
    if address in {"auto", "local"}:
        return
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"{address!r} is no address of a Ray cluster.", hint="Use auto, HOST:PORT or ray://HOST:PORT (port 10001)."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error) or "no answer") from error


def _unreachable(address: str | None, reason: str) -> InputError:
    return InputError(
        f"there is no Ray cluster to be reached at {address or 'this machine'}: {reason.rstrip('.')}.",
        hint="Start one with `ray start --head`, or leave --address out for this machine alone.",
    )


def _connect(ray: Any, address: str | None, workers: int) -> None:
    if address is not None:
        check_reachable(address)
    own = {"address": "local", "num_cpus": workers}  # whatever other cluster runs on this machine
    where: dict[str, Any] = own if address is None else {"address": address}
    try:
        ray.init(
            **where, include_dashboard=False if address is None else None, log_to_driver=False, logging_level="error"
        )
    except (ConnectionError, ValueError, RuntimeError, AssertionError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _unreachable(address, reason) from error
    logging.getLogger("ray").setLevel(logging.ERROR)


class _Driver:
    """Gives out tasks and takes in results."""

    def __init__(self, ray: Any, make_work: MakeWork) -> None:
        self._ray = ray
        pieces: dict[str, Any] = {}
        content = Packing(lambda name, piece: pieces.update({name: ray.put(piece)})).pack(make_work)
        self._shared = ray.put((content, pieces))
        self._board = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Board).remote()
        self._serve = ray.remote(num_cpus=1, max_retries=RETRIES)(_serve)
        self._started: set[int] = set()
        self._heard: Any = None

    def run(self, tasks: Sequence[Any], handle: Handle) -> None:
        waiting = deque(range(len(tasks)))
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < _WINDOW:
                    index = waiting.popleft()
                    running[self._serve.remote([self._shared], [self._board], index, tasks[index])] = index
                ended, _ = self._ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
                self._hear(handle)
                for one in ended:
                    index = running.pop(one)
                    self._start(index, handle)
                    handle(Finished(index, self._result(one)))
        finally:
            for one in running:
                self._ray.cancel(one, force=True)
            self._ray.kill(self._board)

    def _result(self, one: Any) -> Any:
        from ray import exceptions

        try:
            result = self._ray.get(one)
        except exceptions.RayTaskError as error:
            reason = str(error).rstrip().rpartition("\n")[2]
            if reason.startswith(_UNLOADABLE):  # outside of `_serve`, which answers for itself
                reason = reason.partition(": ")[2].rstrip(".")
                raise InputError(f"a node of the cluster cannot load fedseal: {reason}.", hint=_ALIKE) from error
            raise RuntimeError(f"a task failed on the cluster:\n{error}") from error
        except exceptions.RayError as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TrialError(
                f"a task died {RETRIES + 1} times on the cluster: {reason.rstrip('.')}.",
                hint="If memory ran out, give every node fewer CPUs. Run the same command again to resume.",
            ) from error
        if isinstance(result, FedsealError):
            raise result
        return result

    def _start(self, index: int, handle: Handle) -> None:
        if index not in self._started:
            self._started.add(index)
            handle(Started(index))

    def _hear(self, handle: Handle) -> None:
        """Hand over what the board has; a board that died with its node starts empty, and only display is lost."""
        from ray import exceptions

        if self._heard is None:
            self._heard = self._board.take.remote()
            return
        ready, _ = self._ray.wait([self._heard], timeout=0)
        if not ready:
            return
        heard, self._heard = self._heard, None
        try:
            told = self._ray.get(heard)
        except exceptions.RayError:
            return
        for index, tick in told:
            self._start(index, handle)
            if tick is not None:
                handle(Progressed(index, tick))


class _Board:
    """An actor that keeps what running tasks tell, until the driver asks."""

    def __init__(self) -> None:
        self._told: dict[int, Tick | None] = {}

    def tell(self, index: int, tick: Tick | None) -> None:
        """Take how a task goes; the latest counts."""
        self._told[index] = tick

    def take(self) -> list[tuple[int, Tick | None]]:
        """Return what was told since the last time."""
        told, self._told = list(self._told.items()), {}
        return told


_WORKS: OrderedDict[str, Work] = OrderedDict()
"""The work this process has built, by the object it came in: Ray's processes outlive a task, and a run."""


def _serve(shared: list[Any], board: list[Any], index: int, task: Any) -> Any:
    """Run one task in a process of the cluster; an error that is meant for a person is a result."""
    board[0].tell.remote(index, None)
    try:
        with one_thread(), freed_memory_kept():
            return _work_of(shared[0])(task, partial(_report, board[0], index, [0.0]))
    except FedsealError as error:
        return type(error)(f"{error.message.rstrip('.')} (on node {socket.gethostname()}).", hint=error.hint)
    except (ImportError, AttributeError) as error:
        return InputError(
            f"node {socket.gethostname()} cannot load the work: {error}.",
            hint=_ALIKE,
        )


def _work_of(shared: Any) -> Work:
    import ray

    name = shared.hex()
    if name not in _WORKS:
        content, pieces = ray.get(shared)
        _WORKS[name] = unpack(content, lambda piece: ray.get(pieces[piece]))()
        while len(_WORKS) > _KEPT_WORKS:
            _WORKS.popitem(last=False)
    return _WORKS[name]


def _report(board: Any, index: int, last: list[float], tick: Tick) -> None:
    now = time.monotonic()
    if now - last[0] >= _TELL_SECONDS:
        last[0] = now
        board.tell.remote(index, tick)
