"""Who watches an audit."""

from __future__ import annotations

from collections.abc import Sequence

from fedseal.audit.plan import Job
from fedseal.audit.trials import Outcome
from fedseal.store.findings import Finding


class Observer:
    """Watches an audit, for display; it can change nothing. This one shows nothing."""

    def planned(self, trials: int, stored: int) -> None:
        """Take the size of the plan and how much of it is in the store."""

    def found(self, scenario: str, findings: Sequence[Finding]) -> None:
        """Take the doctor's findings on a scenario."""

    def started(self, job: Job) -> None:
        """Take a job that starts."""

    def progressed(self, job: Job, done: float, psnr_db: float) -> None:
        """Take a running job's finished fraction and current mean PSNR."""

    def finished(self, job: Job, outcomes: Sequence[Outcome]) -> None:
        """Take what a job produced."""
