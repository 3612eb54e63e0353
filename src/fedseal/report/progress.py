"""An audit's progress in the terminal: a bar for all trials, and one per running job with its live PSNR."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID, TaskProgressColumn

from fedseal.audit.observer import Observer
from fedseal.audit.plan import Job
from fedseal.audit.trials import Outcome
from fedseal.report.bars import Bars
from fedseal.store.findings import Finding

_STYLES = {"problem": "red", "warning": "yellow", "note": "dim"}


class TerminalProgress(Bars, Observer):
    """An audit's observer that draws with Rich; use it as a context manager.

    Args:
        console: where to draw; without a terminal a line is printed per finished job instead.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console, TaskProgressColumn())
        self._all: TaskID | None = None
        self._running: dict[Job, TaskID] = {}
        self._trials = 0
        self._done = 0

    def planned(self, trials: int, stored: int) -> None:
        """Show how much there is to do."""
        self._trials, self._done = trials, stored
        self._all = self._progress.add_task("all trials", total=trials, completed=stored, state="")
        if stored:
            self._console.print(f"{stored} of {trials} trials are in the store already.", style="dim")

    def found(self, scenario: str, findings: Sequence[Finding]) -> None:
        """Print the doctor's findings."""
        for finding in findings:
            style = _STYLES[finding.severity]
            self._console.print(f"[{style}]{finding.severity}[/]: {finding.topic}: {escape(finding.text)}")

    def started(self, job: Job) -> None:
        """Add a bar for the job."""
        self._running[job] = self._progress.add_task(f"  {escape(_title(job))}", total=1.0, state="")

    def progressed(self, job: Job, done: float, psnr_db: float) -> None:
        """Move the job's bar and show the PSNR it has reached."""
        self._progress.update(self._running[job], completed=done, state=f"{psnr_db:.1f} dB")

    def finished(self, job: Job, outcomes: Sequence[Outcome]) -> None:
        """Count a job's trials as done."""
        self._done += len(outcomes)
        self._progress.remove_task(self._running.pop(job))
        if self._all is not None:
            self._progress.update(self._all, completed=self._done)
        if not self._console.is_terminal:
            self._console.print(f"{self._done}/{self._trials} trials, {_title(job)}", highlight=False, markup=False)


def _title(job: Job) -> str:
    return f"{job.attack} on {job.defence}" + (", known" if job.aware else "")
