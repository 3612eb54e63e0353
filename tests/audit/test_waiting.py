"""What somebody sees who waits: a forecast, signs of life in a log, and nothing lost when they stop."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedseal.audit import plan
from fedseal.audit.estimate import duration, estimate, spent
from fedseal.audit.plan import plan_jobs
from fedseal.audit.runner import open_run, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.watcher import Task, Tick, Watcher
from fedseal.report.progress import HEARTBEAT_SECONDS, TerminalProgress

TINY = {"data": "faces:size=8", "attacks": ("ig:iterations=1",), "readings": 0}


class Hearing(Watcher):
    """Keeps what it is told, and stops after some tasks."""

    def __init__(self, stop_after: int = 99) -> None:
        self.plans: list[tuple[int, int]] = []
        self.remarks: list[str] = []
        self._left = stop_after

    def planned(self, what: str, total: int, done: int) -> None:
        self.plans.append((total, done))

    def remarked(self, severity: str, text: str) -> None:
        self.remarks.append(text)

    def finished(self, task: Task, count: int) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def test_what_an_attack_spends_is_read_from_its_options() -> None:
    assert spent("ig:iterations=70", None, None) == (70, 1)
    assert spent("ig:iterations=70", 5, 3) == (5, 3)
    assert spent("gradinversion", None, None) == (20000, 8)
    assert spent("first-layer", None, None) == (1, 1)
    assert spent("auto:budget=100", None, None)[0] >= 100


def test_more_work_is_forecast_to_take_longer_and_more_workers_less() -> None:
    def forecast(workers: int, **changes: object) -> float:
        setup = build_setup(Scenario(**{**TINY, "attacks": ("ig:iterations=500",), **changes}))  # type: ignore[arg-type]
        plan = [(setup, plan_jobs(setup))]
        found = min((estimate(plan, workers) for _ in range(3)), key=lambda one: one.seconds)  # others use the machine
        assert found.bytes > 100 << 20
        assert "GiB of memory" in found.describe()
        return found.seconds

    assert forecast(1, targets=4) > 2 * forecast(1, targets=1)
    several = ("ig:iterations=500", "ig:iterations=501")
    assert forecast(2, attacks=several) < 0.8 * forecast(1, attacks=several)
    assert [duration(seconds) for seconds in (0.1, 89, 600, 7200)] == ["1 s", "89 s", "10 min", "2.0 h"]


def test_the_forecast_is_told_before_the_first_trial_and_only_if_there_is_one(tmp_path: Path) -> None:
    for expected in (1, 0):
        hearing = Hearing()
        run_audit([Scenario(**TINY, targets=1)], tmp_path, watcher=hearing)  # type: ignore[arg-type]
        assert sum(text.startswith("estimate: about") for text in hearing.remarks) == expected


def test_trainings_before_the_attack_and_what_is_learned_first_are_forecast(tmp_path: Path) -> None:
    def seconds(**changes: object) -> float:
        setup = build_setup(Scenario(**{**TINY, **changes}), stages=tmp_path)  # type: ignore[arg-type]
        return min(estimate([(setup, plan_jobs(setup))], 1).core_seconds for _ in range(3))

    assert seconds(stage={"round": 400, "clients": 10}) > 3 * seconds(stage={"round": 1, "clients": 10})
    learned = {"data": "digits:size=8", "attacks": ("learned",)}
    many, few = (seconds(**learned, attacker={"public_images": count}) for count in (500, 5))
    assert many > 5 * few


def test_the_forecast_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    class InOrder(Hearing):
        def __init__(self) -> None:
            super().__init__()
            self.order: list[str] = []

        def remarked(self, severity: str, text: str) -> None:
            self.order.append(text)

        def started(self, task: Task) -> None:
            self.order.append(task.title)

    hearing = InOrder()
    staged = {**TINY, "stage": {"round": 2, "clients": 2}}
    run_audit([Scenario(**staged, targets=1)], tmp_path, watcher=hearing)  # type: ignore[arg-type]
    told = [text.startswith("estimate: about") for text in hearing.order].index(True)
    assert told < [text.startswith("training under none") for text in hearing.order].index(True)


def test_more_targets_run_only_what_is_new(tmp_path: Path) -> None:
    hearing = Hearing()
    for targets in (2, 3):
        run_audit([Scenario(**TINY, targets=targets)], tmp_path, watcher=hearing)  # type: ignore[arg-type]
    assert hearing.plans == [(2, 0), (3, 2)]


def test_who_stops_keeps_every_finished_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_SMALL", 0)  # as if the model were large
    with pytest.raises(KeyboardInterrupt):
        run_audit([Scenario(**TINY, targets=4)], tmp_path, watcher=Hearing(stop_after=2))  # type: ignore[arg-type]
    assert len(open_run(tmp_path).records) == 2
    monkeypatch.undo()
    hearing = Hearing()
    run_audit([Scenario(**TINY, targets=4)], tmp_path, watcher=hearing)  # type: ignore[arg-type]
    assert hearing.plans == [(4, 2)]  # a target is one trial, with whomever it is attacked


class Log(io.StringIO):
    """A file that can be waited upon."""

    def has(self, text: str, seconds: float = 20.0) -> bool:
        end = time.monotonic() + seconds
        while text not in self.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
        return text in self.getvalue()


def heartbeats() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fedseal-heartbeat"]


def test_the_time_told_is_that_of_the_task_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fedseal.report.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    shown = TerminalProgress(Console(file=io.StringIO(), force_terminal=False))
    first, second = Task("first"), Task("second")
    shown.started(first)
    now[0] = 600.0
    shown.finished(first, 1)
    shown.started(second)
    now[0] = 630.0
    assert shown._status([second]) == "second, at work for 30 s"
    assert shown._status([]) == "at work for 10 min"


def test_a_log_shows_life_while_something_runs_that_reports_nothing() -> None:
    log = Log()
    with TerminalProgress(Console(file=log, force_terminal=False, width=300), heartbeat=0.05) as shown:
        assert log.has("at work for")  # before there is a plan
        shown.planned("trials", 4, 1)
        silent, telling = Task("auto on none"), Task("ig on none")
        shown.started(silent)
        assert log.has("1/4 trials, auto on none, at work for")
        shown.started(telling)
        assert log.has("1/4 trials, auto on none and 1 more, at work for")
        shown.finished(silent, 1)
        shown.advanced(telling, Tick(0.5, {"psnr_db": 13.5}))
        assert log.has("2/4 trials, 50% of ig on none, at work for")
        shown.finished(telling, 1)
    assert "3/4 trials, ig on none: 13.5 dB" in log.getvalue()
    assert not heartbeats()
    said = log.getvalue()
    time.sleep(0.15)
    assert log.getvalue() == said


def test_a_log_is_told_no_more_often_than_every_half_minute() -> None:
    log = Log()
    with TerminalProgress(Console(file=log, force_terminal=False, width=300)) as shown:
        shown.planned("trials", 4, 0)
        task = Task("ig on none")
        shown.started(task)
        for step in range(50):
            shown.advanced(task, Tick(step / 50, {"psnr_db": 12.5}))
        assert log.getvalue() == ""
    assert HEARTBEAT_SECONDS == 30


@pytest.mark.parametrize("failing", [False, True])
def test_a_terminal_has_no_ticker_and_an_error_leaves_none(failing: bool) -> None:
    with TerminalProgress(Console(file=io.StringIO(), force_terminal=True)):
        assert not heartbeats()
    with contextlib.suppress(KeyboardInterrupt), TerminalProgress(Console(file=Log(), force_terminal=False)):
        assert len(heartbeats()) == 1
        if failing:
            raise KeyboardInterrupt
    assert not heartbeats()


def test_a_log_that_nobody_reads_ends_the_ticker_quietly(recwarn: pytest.WarningsRecorder) -> None:
    log = Log()
    with TerminalProgress(Console(file=log, force_terminal=False), heartbeat=0.01):
        assert log.has("at work for")
        log.close()
        end = time.monotonic() + 20
        while heartbeats() and time.monotonic() < end:
            time.sleep(0.01)
        assert not heartbeats()
    assert not [one for one in recwarn if "thread" in str(one.message).lower()]
