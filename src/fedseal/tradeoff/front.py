"""`fedseal.tradeoff`: privacy against accuracy over strengths of defences in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedseal.core.config_file import Source, configure
from fedseal.core.files import PathText
from fedseal.tradeoff.curves import Tradeoff, attack_sweeps, open_tradeoff, train_sweeps
from fedseal.tradeoff.scenario import TradeoffScenario


def tradeoff(
    scenario: Source | None = None,
    *,
    out: PathText = "fedseal-tradeoff",
    data_root: PathText | None = None,
    device: str = "cpu",
    workers: int = 1,
    **values: Any,
) -> Tradeoff:
    """Sweep defences, train under each strength and attack it; the same call again resumes.

    Args:
        scenario: a `TradeoffScenario`, a mapping, the path of a YAML file or YAML text; None for the defaults.
        out: directory of both halves.
        data_root: where local data sets lie.
        device: where both halves run.
        workers: processes of the attack, threads of the training.
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
    chosen = configure(scenario, TradeoffScenario, values, command="tradeoff")
    root = None if data_root is None else Path(data_root)
    command = "fedseal.tradeoff(...)"
    attack_sweeps(chosen, Path(out), data_root=root, device=device, workers=workers, command=command)
    train_sweeps(chosen, Path(out), data_root=root, device=device, workers=workers, command=command)
    return open_tradeoff(out)
