"""A training run in the terminal: a bar for all trainings, one for the rounds of the current one, and its accuracy."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, TaskID
from rich.table import Table

from fedseal.federation.simulation import RoundRecord
from fedseal.report import words
from fedseal.report.bars import Bars
from fedseal.training.run import Training, TrainingRun
from fedseal.training.runner import TrainingObserver


class TrainingProgress(Bars, TrainingObserver):
    """An observer that draws with Rich; use it as a context manager.

    Args:
        console: where to draw; without a terminal a line is printed per training instead.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console, MofNCompleteColumn())
        self._all: TaskID | None = None
        self._current: TaskID | None = None
        self._rounds = 0

    def planned(self, trainings: int, rounds: int) -> None:
        """Show how much there is to do."""
        self._rounds = rounds
        self._all = self._progress.add_task("all trainings", total=trainings, state="")

    def started(self, defence: str, seed: int, done: int) -> None:
        """Add a bar for the training's rounds."""
        title = f"  {escape(defence)}, seed {seed}"
        self._current = self._progress.add_task(title, total=self._rounds, completed=min(done, self._rounds), state="")

    def advanced(self, record: RoundRecord) -> None:
        """Move the bar, show the accuracy, and name who was refused."""
        if self._current is not None:
            self._progress.update(self._current, completed=record.round + 1)
            if record.accuracy is not None:
                self._progress.update(self._current, state=f"accuracy {record.accuracy:.1%}")
        refused = [dropped for dropped in record.dropped if dropped.reason != "did not answer"]
        for dropped in refused[:3]:
            self._console.print(
                f"[yellow]dropped[/]: {dropped.client} in round {record.round}: {escape(dropped.reason)}"
            )

    def ended(self, training: Training) -> None:
        """Count a training as done."""
        if self._current is not None:
            self._progress.remove_task(self._current)
        if self._all is not None:
            self._progress.advance(self._all)
        if training.history is None:
            self._console.print(f"[yellow]refused[/]: {escape(training.defence)}: {escape(training.refused)}")
        elif not self._console.is_terminal:
            done = f"{training.defence}, seed {training.seed}: accuracy {training.history.accuracy:.1%}"
            self._console.print(done, highlight=False, markup=False)


def render_training(run: TrainingRun) -> Table:
    """Return what each defence costs as a table for the terminal."""
    table = Table(title=f"{run.scenario.name}: accuracy kept under each defence (chance {run.chance:.1%})")
    table.add_column("defence", no_wrap=False)
    for heading in ("accuracy", "PMM", "to target", "upload", "s/round"):
        table.add_column(heading, justify="right")
    for one in run.utilities:
        if one.accuracy is None or one.pmm is None:
            table.add_row(escape(one.defence), escape(one.refused or "–"), *[""] * 4)
            continue
        to_target = "never" if one.rounds is None else f"{one.rounds.mean:.0f}"
        table.add_row(
            escape(one.defence),
            f"{one.accuracy.mean:.1%}",
            f"{one.pmm.mean:.1f}",
            to_target,
            words.size(one.bytes_up),
            words.significant(one.seconds),
        )
    return table
