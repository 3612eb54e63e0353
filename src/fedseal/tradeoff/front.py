"""`fedseal.tradeoff`: privacy against accuracy over strengths of defences in one call."""

from __future__ import annotations

from typing import Any

from fedseal.core.config_file import Source, configure
from fedseal.core.files import PathText
from fedseal.core.watcher import Watcher
from fedseal.tradeoff.curves import Tradeoff, run_tradeoff
from fedseal.tradeoff.scenario import TradeoffScenario


def tradeoff(
    scenario: Source | None = None,
    *,
    out: PathText = "fedseal-tradeoff",
    data_root: PathText | None = None,
    device: str = "cpu",
    workers: int = 1,
    watcher: Watcher | None = None,
    **values: Any,
) -> Tradeoff:
    """Sweep defences, train under each strength and attack it; the same call again resumes.

    Args:
        scenario: a `TradeoffScenario`, a mapping, the path of a YAML file or YAML text; None for the defaults.
        out: directory of both halves.
        data_root: where local data sets lie.
        device: where both halves run.
        workers: processes of the attack, threads of the training.
        watcher: told of progress.
        values: keys of the scenario (`data`, `model`, `defences`, `attacks`, ...) to replace.

    Example:
        >>> import fedseal, tempfile
        >>> result = fedseal.tradeoff(
        ...     data="faces:size=8", model="mlp", clients=2, federation={"rounds": 1}, defences="topk:ratio=0.5/0.9",
        ...     attacks="ig:iterations=2", targets=1, out=tempfile.mkdtemp(),
        ... )
        >>> [len(curve.points) for curve in result.curves]
        [2]
    """
    return run_tradeoff(
        configure(scenario, TradeoffScenario, values, command="tradeoff"),
        out,
        data_root=data_root,
        device=device,
        workers=workers,
        command="fedseal.tradeoff(...)",
        watcher=watcher,
    )
