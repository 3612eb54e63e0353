"""From names of data sets to a file with a trained and measured evaluation network: `fedseal train-evaluator`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedseal.core.specs import without_directories
from fedseal.core.watcher import Watcher
from fedseal.data.dataset import of_images
from fedseal.data.registry import DATASETS
from fedseal.defences.refiner.fitting import (
    RATIOS,
    EvaluatorFit,
    Measured,
    TrainingPlan,
    measure_evaluator,
)
from fedseal.defences.refiner.weights import save_evaluator
from fedseal.preparation import library


@dataclass(frozen=True)
class Produced:
    """A trained network's file.

    Attributes:
        path: where it is.
        sha256: of the file.
        measured: its errors on the data sets it was checked on.
    """

    path: Path
    sha256: str
    measured: tuple[Measured, ...]

    def table(self) -> str:
        """Return the mean predictions per noise ratio and the errors as a Markdown table."""
        head = ["checked on", "images", "mean error", "monotone", *(f"{ratio:g}" for ratio in RATIOS)]
        rows = [
            [
                one.data,
                str(one.images),
                f"{one.error:.4f}",
                "yes" if one.is_monotone else "no",
                *(f"{value:.3f}" for value in one.predicted),
            ]
            for one in self.measured
        ]
        return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def produce_evaluator(
    data: Sequence[str],
    check: Sequence[str],
    plan: TrainingPlan,
    out: Path,
    *,
    data_root: Path | None = None,
    watcher: Watcher | None = None,
) -> Produced:
    """Train a network on `data`, measure it on `check` and write it to `out`.

    Args:
        data: specs of public data sets to train on.
        check: specs of data sets to measure it on, best ones it was not trained on.
        plan: how to train.
        out: the file.
        data_root: directory with local data sets.
        watcher: told of the steps.
    """
    sources, judged = (
        [of_images(DATASETS.build(spec, data_root=data_root), "this evaluation network") for spec in specs]
        for specs in (data, check)
    )
    network = library().get(EvaluatorFit(tuple(sources), plan), watcher)
    about = {
        "data": ", ".join(without_directories(spec) for spec in data),
        "steps": str(plan.steps),
        "batch_size": str(plan.batch_size),
        "learning_rate": f"{plan.learning_rate:g}",
        "structured": f"{plan.structured:g}",
        "seed": str(plan.seed),
    }
    sha256 = save_evaluator(network, out, about)
    return Produced(out, sha256, tuple(measure_evaluator(network, dataset) for dataset in judged))
