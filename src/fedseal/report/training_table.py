"""A training run's result as a table for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from fedseal.report import words
from fedseal.training.run import TrainingRun


def render_training(run: TrainingRun) -> Table:
    """Return what each defence costs as a table for the terminal."""
    table = Table(title=f"{run.scenario.name}: accuracy kept under each defence (chance {run.chance:.1%})")
    table.caption = run.caution or None
    table.add_column("defence", no_wrap=False)
    for heading in ("accuracy", "AUC", "PMM", "to target", "upload", "s/round"):
        table.add_column(heading, justify="right")
    for one in run.utilities:
        if one.accuracy is None:
            table.add_row(escape(one.defence), escape(one.refused or words.ABSENT), *[""] * 5)
            continue
        to_target = words.ABSENT if run.target is None else "never" if one.rounds is None else f"{one.rounds.mean:.0f}"
        table.add_row(
            escape(one.defence),
            f"{one.accuracy.mean:.1%}" + ("" if one.learnt else " (chance)"),
            words.ABSENT if one.auc is None else f"{one.auc.mean:.3f}",
            words.ABSENT if one.pmm is None else f"{one.pmm.mean:.1f}",
            to_target,
            words.size(one.bytes_up),
            words.significant(one.seconds),
        )
    return table
