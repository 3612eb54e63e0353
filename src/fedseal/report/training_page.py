"""A training run for people: one HTML file that needs no network and no script, like the audit's."""

from __future__ import annotations

from pathlib import Path

import yaml

from fedseal._version import VERSION
from fedseal.core.files import write_atomically
from fedseal.report import words
from fedseal.report.curves import HEIGHT, HUES, MOST_CLASSES, WIDTH, curve_chart, partition_chart
from fedseal.report.html import template_environment
from fedseal.report.training_machine import training_files
from fedseal.training.run import TrainingRun


def render_training_html(run: TrainingRun) -> str:
    """Return the report as one self-contained HTML file."""
    text = (
        template_environment()
        .get_template("training.html")
        .render(
            run=run,
            version=VERSION,
            curves=curve_chart(run),
            partition=partition_chart(run),
            width=WIDTH,
            height=HEIGHT,
            hues=range(HUES),
            class_hues=range(MOST_CLASSES),
            settings=yaml.safe_dump(run.scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        )
    )
    return words.printable(text)


def write_training_report(run: TrainingRun, directory: Path) -> Path:
    """Write `training.html`, `.json`, `.csv` and `rounds.csv` into `directory`; return the page's path."""
    for name, text in training_files(run).items():
        write_atomically(directory / name, text)
    path = directory / "training.html"
    write_atomically(path, render_training_html(run))
    return path
