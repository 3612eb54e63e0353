"""Engines: both run every task once, show it while it runs, and let nothing go missing when something breaks."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedseal.core.errors import InputError, StorageError, TrialError
from fedseal.engines.events import Event, Finished, Progressed, Started
from fedseal.engines.local import LocalEngine
from fedseal.engines.pool import PoolEngine

TASKS = """
import os, time
import torch
from fedseal.core.errors import InputError

def doubling():
    def work(task, report):
        report(("half", os.getpid()))
        return 2 * task
    return work

def threads():
    return lambda task, report: torch.get_num_threads()

def refusing():
    def work(task, report):
        if task == 3:
            raise InputError("three is wrong.", hint="Take four.")
        return task
    return work

def buggy():
    def work(task, report):
        raise LookupError("a bug")
    return work

def dying():
    def work(task, report):
        os.kill(os.getpid(), 9)
    return work

def leaving():
    def work(task, report):
        if task == 2:
            os._exit(0)
        return task
    return work

def cut_short():
    def work(task, report):
        import threading
        threading.Timer(0.5, os.kill, (os.getpid(), 9)).start()
        report("on its way")
        import multiprocessing.connection as c
        def half(self, buf, write=os.write):
            write(self._handle, bytes(buf)[:4096])
            time.sleep(60)
        c.Connection._send = half
        return b"x" * (1 << 20)
    return work

def sleeping():
    def work(task, report):
        report(os.getpid())
        time.sleep(60)
    return work

def unbuildable():
    raise InputError("nothing to work with.")
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module of work that worker processes can import."""
    directory = tmp_path_factory.mktemp("work")
    (directory / "engine_test_work.py").write_text(TASKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        yield importlib.import_module("engine_test_work")


def events_of(engine: LocalEngine | PoolEngine, make_work: Any, tasks: list[Any]) -> list[Event]:
    events: list[Event] = []
    engine.run(make_work, tasks, events.append)
    return events


ENGINES = [LocalEngine(), PoolEngine(2)]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_every_task_starts_reports_and_finishes_once(engine: LocalEngine | PoolEngine, work: ModuleType):
    events = events_of(engine, work.doubling, list(range(7)))
    results = {event.index: event.result for event in events if isinstance(event, Finished)}
    assert results == {index: 2 * index for index in range(7)}
    for index in range(7):
        own = [event for event in events if event.index == index]
        assert [type(event) for event in own] == [Started, Progressed, Finished]
    pids = {event.report[1] for event in events if isinstance(event, Progressed)}
    assert (pids == {os.getpid()}) == isinstance(engine, LocalEngine)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_no_tasks_are_no_events(engine: LocalEngine | PoolEngine, work: ModuleType):
    assert events_of(engine, work.unbuildable, []) == []


@pytest.mark.parametrize("engine", [LocalEngine(), PoolEngine(1)], ids=lambda engine: type(engine).__name__)
def test_work_has_one_thread_and_this_process_keeps_its_own(engine: LocalEngine | PoolEngine, work: ModuleType):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        events = events_of(engine, work.threads, [0, 1])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [event.result for event in events if isinstance(event, Finished)] == [1, 1]


@pytest.mark.parametrize("engine", [LocalEngine(), PoolEngine(1)], ids=lambda engine: type(engine).__name__)
def test_an_error_for_people_arrives_with_its_hint(engine: LocalEngine | PoolEngine, work: ModuleType):
    with pytest.raises(InputError, match="three is wrong") as caught:
        events_of(engine, work.refusing, [1, 2, 3, 4])
    assert caught.value.hint == "Take four."


def test_reports_of_a_task_in_this_process_come_while_it_runs():
    seen: list[str] = []

    def make_work() -> Any:
        def run(task: int, report: Any) -> int:
            report("now")
            assert seen == ["Started", "Progressed"]
            return task

        return run

    LocalEngine().run(make_work, [1], lambda event: seen.append(type(event).__name__))
    assert seen == ["Started", "Progressed", "Finished"]


def test_a_bug_in_a_worker_arrives_with_its_traceback(work: ModuleType):
    with pytest.raises(RuntimeError, match=r"(?s)worker process failed.*LookupError: a bug"):
        events_of(PoolEngine(1), work.buggy, [1, 2])


def test_a_worker_that_is_killed_is_noticed(work: ModuleType):
    with pytest.raises(TrialError, match="died with exit code -9") as caught:
        events_of(PoolEngine(1), work.dying, [1, 2, 3])
    assert "resume" in str(caught.value)


def test_an_exception_in_the_handler_ends_the_workers(work: ModuleType):
    pids: list[int] = []

    def handle(event: Event) -> None:
        if isinstance(event, Progressed):
            pids.append(event.report)
            raise ArithmeticError("enough")

    with pytest.raises(ArithmeticError):
        PoolEngine(1).run(work.sleeping, [1, 2, 3], handle)
    assert len(pids) == 1
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def script(body: str, directory: Path) -> subprocess.Popen[str]:
    (directory / "engine_test_work.py").write_text(TASKS)
    path = directory / "script.py"
    path.write_text(textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_tasks_that_nobody_took_do_not_keep_the_process_alive(tmp_path: Path):
    """A plan longer than a pipe's buffer, abandoned at its first task."""
    process = script(
        """
        import engine_test_work
        from fedseal.core.errors import InputError
        from fedseal.engines.pool import PoolEngine
        if __name__ == "__main__":
            try:
                PoolEngine(1).run(engine_test_work.unbuildable, ["x" * 10_000] * 100, print)
            except InputError as error:
                print(error)
        """,
        tmp_path,
    )
    try:
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert output == "nothing to work with.\n", errors
    assert process.returncode == 0


SLEEPER = """
    import engine_test_work
    from fedseal.engines.events import Progressed
    from fedseal.engines.pool import PoolEngine
    def handle(event):
        if isinstance(event, Progressed):
            print(event.report, flush=True)
    if __name__ == "__main__":
        try:
            PoolEngine(2).run(engine_test_work.sleeping, [1, 2, 3], handle)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def workers_of(parent: int) -> list[int]:
    """Return the processes that `parent` spawned to work."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            spawned = "spawn_main" in (place / "cmdline").read_text()
            if spawned and int((place / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(int(place.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return found


def wait_until(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_workers_end_when_their_parent_is_killed(tmp_path: Path):
    process = script(SLEEPER, tmp_path)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    assert all(alive(pid) for pid in pids)
    process.kill()
    process.wait()
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 5)
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False])
def test_ctrl_c_ends_everything_without_tracebacks(tmp_path: Path, early: bool):
    """Whether workers are at work or still importing what they need."""
    process = script(SLEEPER, tmp_path)
    assert process.stdout is not None
    if early:
        assert wait_until(lambda: len(workers_of(process.pid)) == 2, 20)
        time.sleep(0.2)
    else:
        process.stdout.readline()
    workers = workers_of(process.pid)
    for pid in workers:  # a terminal sends it to parent and workers; theirs may come first
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    assert all(alive(pid) for pid in workers)
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert output.splitlines()[-1] == "interrupted"
    assert errors == ""
    assert process.returncode == 0
    assert len(workers) == 2
    assert not any(alive(pid) for pid in workers)


@pytest.mark.slow
def test_a_worker_that_leaves_with_code_0_is_no_reason_to_wait(work: ModuleType) -> None:
    with pytest.raises(TrialError, match="died with exit code 0"):
        PoolEngine(2).run(work.leaving, [1, 2, 3, 4], lambda event: None)


def test_a_worker_killed_in_the_middle_of_a_large_result_is_no_reason_to_wait(work: ModuleType) -> None:
    with pytest.raises(TrialError, match="exit code -9"):
        PoolEngine(2).run(work.cut_short, [1, 2], lambda event: None)


@pytest.mark.slow
def test_workers_need_no_shared_memory(work: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refused)
    results: list[Any] = []
    PoolEngine(2).run(work.doubling, [1, 2, 3], results.append)
    assert sorted(event.result for event in results if isinstance(event, Finished)) == [2, 4, 6]


def test_processes_that_cannot_be_started_are_said(work: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("multiprocessing.context.SpawnContext.Pipe", refused)
    with pytest.raises(StorageError, match=r"cannot be started: Too many open files.*--workers 1"):
        PoolEngine(2).run(work.doubling, [1, 2], lambda event: None)
