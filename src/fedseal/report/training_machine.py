"""A training for programs: JSON of everything, CSV of the defences and of every round.

Within a schema version, keys are only ever added.
"""

from __future__ import annotations

from typing import Any

from fedseal._version import VERSION
from fedseal.report.machine import json_text
from fedseal.report.rows import csv_text
from fedseal.training.run import TrainingRun, Utility

SCHEMA = "fedseal-training"
SCHEMA_VERSION = 1


def training_files(run: TrainingRun) -> dict[str, str]:
    """Return the files for programs by their names."""
    return {
        "training.json": json_text(training_data(run)),
        "training.csv": csv_text([utility_data(run, one) for one in run.utilities]),
        "rounds.csv": csv_text(run.rows()),
    }


def training_data(run: TrainingRun) -> dict[str, Any]:
    """Return the whole run as plain data."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "fedseal": VERSION,
        "command": run.command,
        "scenario": run.scenario.model_dump(mode="json"),
        "environment": dict(run.environment),
        "test_images": run.test_images,
        "chance": run.chance,
        "target": run.target,
        "learnt": run.caution == "",
        "caution": run.caution,
        "classes": list(run.classes),
        "images_per_client_and_class": [list(row) for row in run.counts],
        "defences": [utility_data(run, one) for one in run.utilities],
        "trainings": [
            {
                "defence": training.defence,
                "seed": training.seed,
                "refused": training.refused,
                "failed": training.failed,
                "history": None if training.history is None else training.history.model_dump(mode="json"),
            }
            for training in run.trainings
        ],
    }


def utility_data(run: TrainingRun, one: Utility) -> dict[str, Any]:
    """Return what a defence costs as plain data."""
    intervals = {"accuracy": one.accuracy, "pmm": one.pmm, "auc": one.auc, "rounds_to_target": one.rounds}
    return {
        "defence": one.defence,
        "refused": one.refused,
        "learnt": one.learnt,
        **{name: None if value is None else value.as_dict() for name, value in intervals.items()},
        "reached_target": one.reached,
        "class_accuracy": dict(zip(run.classes, one.class_accuracy, strict=False)),
        "bytes_up_per_client_and_round": one.bytes_up,
        "seconds_per_round": one.seconds,
        "epsilon": one.epsilon,
        "uploads_refused": one.dropped,
        "remarks": list(one.remarks),
    }
