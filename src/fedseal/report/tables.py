"""A directory's results in the form that is asked for, whichever command left them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedseal.audit.run import Run
from fedseal.audit.runner import open_run
from fedseal.report.machine import render_json, report_data
from fedseal.report.markdown import render_markdown
from fedseal.report.overview import render_overview
from fedseal.report.rows import csv_text
from fedseal.report.tradeoff import render_tradeoff
from fedseal.report.tradeoff_machine import tradeoff_csv, tradeoff_json
from fedseal.report.training_machine import training_files
from fedseal.report.utility import render_utility
from fedseal.store.database import Store
from fedseal.tradeoff.curves import holds_tradeoff, open_tradeoff
from fedseal.training.run import open_training

Form = Literal["markdown", "csv", "json"]


def run_table(directory: Path, form: Form, *, overview: bool = False) -> str:
    """Return the results below a directory; `overview` puts an audit's matrix before its tables."""
    if holds_tradeoff(directory):
        tradeoff = open_tradeoff(directory)
        return {"markdown": render_tradeoff, "csv": tradeoff_csv, "json": tradeoff_json}[form](tradeoff)
    with Store(directory, writable=False) as store:
        trained = "trainings" in store.meta()
    if trained:
        training = open_training(directory)
        return render_utility(training) if form == "markdown" else training_files(training)[f"training.{form}"]
    return _audit(open_run(directory), form, overview)


def _audit(run: Run, form: Form, overview: bool) -> str:
    if form == "json":
        return render_json(run)
    if form == "csv":
        return csv_text(report_data(run)["cells"])
    return (render_overview(run) + "\n" if overview else "") + render_markdown(run)
