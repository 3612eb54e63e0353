"""`fedseal.train`: the training of a federation under defences in one call."""

from __future__ import annotations

from typing import Any

from fedseal.core.config_file import Source, configure
from fedseal.core.files import PathText
from fedseal.core.watcher import Watcher
from fedseal.training.run import TrainingRun
from fedseal.training.runner import run_training
from fedseal.training.scenario import TrainingScenario


def train(
    scenario: Source | None = None,
    *,
    out: PathText = "fedseal-train",
    data_root: PathText | None = None,
    device: str = "cpu",
    workers: int = 1,
    watcher: Watcher | None = None,
    **values: Any,
) -> TrainingRun:
    """Train a federation undefended and under each defence, and return the accuracy kept; the same call again resumes.

    Args:
        scenario: a `TrainingScenario`, a mapping, the path of a YAML file or YAML text; None for the defaults.
        out: directory of store and checkpoints.
        data_root: where local data sets lie.
        device: where clients train.
        workers: clients trained at once, one thread each; no number depends on it.
        watcher: told of progress.
        values: keys of the scenario (`data`, `model`, `defences`, `federation={"rounds": 20}`, ...) to replace.

    Example:
        >>> import fedseal, tempfile
        >>> run = fedseal.train(
        ...     data="faces:size=8", model="mlp", clients=2, defences="topk:ratio=0.9", federation={"rounds": 1},
        ...     out=tempfile.mkdtemp(),
        ... )
        >>> [utility.defence for utility in run.utilities]
        ['none', 'topk:ratio=0.9']
    """
    return run_training(
        configure(scenario, TrainingScenario, values, command="train"),
        out,
        data_root=data_root,
        device=device,
        workers=workers,
        command="fedseal.train(...)",
        watcher=watcher,
    )
