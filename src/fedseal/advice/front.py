"""`fedseal.advise`: which defence to take for a federation, in one call."""

from __future__ import annotations

from typing import Any

from fedseal.advice.advisor import run_advice
from fedseal.advice.outcome import Advice
from fedseal.advice.scenario import AdviceScenario
from fedseal.audit.runner import EngineName
from fedseal.core.config_file import Source, configure
from fedseal.core.files import PathText
from fedseal.core.watcher import Watcher


def advise(
    scenario: Source | None = None,
    *,
    out: PathText = "fedseal-advice",
    data_root: PathText | None = None,
    device: str = "cpu",
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
    watcher: Watcher | None = None,
    **values: Any,
) -> Advice:
    """Look for the defence to take; the same call again resumes. Needs the extra `tune`.

    Args:
        scenario: an `AdviceScenario`, a mapping, the path of a YAML file or YAML text; None for the defaults.
        out: directory of everything it leaves.
        data_root: where local data sets lie.
        device: where everything runs.
        workers: processes of readings and attacks, threads of trainings.
        engine: of readings and attacks.
        address: of a cluster, for `engine="ray"`.
        watcher: told of progress.
        values: keys of the scenario (`data`, `model`, `limits`, ...) to replace.

    Returns:
        The advice: `paragraph` says it, `recommended` is the defence's spec, None where nothing is within the limits.

    Example:
        >>> import fedseal, tempfile
        >>> advice = fedseal.advise(  # a single round teaches nothing, so nothing can be advised
        ...     data="faces:size=8", model="mlp:width=8", clients=2, federation={"rounds": 1}, targets=1, readings=1,
        ...     defences="gaussian:sigma=9", attacks="first-layer", trials=1, seeds=1, out=tempfile.mkdtemp(),
        ... )
        >>> advice.recommended is None, advice.paragraph.split(".")[0]
        (True, 'No defence can be recommended')
    """
    return run_advice(
        configure(scenario, AdviceScenario, values, command="advise"),
        out,
        data_root=data_root,
        device=device,
        workers=workers,
        engine=engine,
        address=address,
        command="fedseal.advise(...)",
        watcher=watcher,
    )
