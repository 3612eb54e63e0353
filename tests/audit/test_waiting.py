"""What somebody sees who waits: a forecast, signs of life in a log, and nothing lost when they stop."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedseal.audit import plan
from fedseal.audit.estimate import duration, estimate, spent
from fedseal.audit.plan import plan_jobs
from fedseal.audit.runner import open_run, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.watcher import Task, Tick, Watcher
from fedseal.report import progress
from fedseal.report.progress import TerminalProgress

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
        found = estimate([(setup, plan_jobs(setup))], workers)
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


def test_a_log_shows_life_while_something_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    with TerminalProgress(Console(file=file, force_terminal=False, width=300)) as shown:
        shown.planned("trials", 4, 1)
        task = Task("ig on none")
        shown.started(task)
        shown.advanced(task, Tick(0.25, {"psnr_db": 12.5}))
        assert "25%" not in file.getvalue()  # not every step is worth a line
        monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.0)
        shown.advanced(task, Tick(0.5, {"psnr_db": 13.5}))
        shown.finished(task, 1)
    assert "1/4 trials, 50% of ig on none: 13.5 dB" in file.getvalue()
    assert "2/4 trials, ig on none: 13.5 dB" in file.getvalue()
