"""`fedseal.audit`: an audit in one call."""

from __future__ import annotations

from typing import Any

from fedseal.audit.factors import scenarios_of
from fedseal.audit.run import Run
from fedseal.audit.runner import EngineName, run_audit
from fedseal.core.config_file import Source
from fedseal.core.files import PathText
from fedseal.core.watcher import Watcher


def audit(
    *scenarios: Source | list[Source] | tuple[Source, ...],
    out: PathText = "fedseal-audit",
    data_root: PathText | None = None,
    device: str = "cpu",
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
    watcher: Watcher | None = None,
    **values: Any,
) -> Run:
    """Attack a federation's updates and return what leaked; the same call again resumes.

    Args:
        scenarios: each a `Scenario`, a mapping, the path of a YAML file or YAML text; none for the defaults. Keys with
            lists of values stand for several (`fedseal.audit.factors`).
        out: directory of store and images.
        data_root: where local data sets lie.
        device: where attacks run.
        workers: processes that run trials; more than 1 need the usual `if __name__ == "__main__"` guard.
        engine: `local`, or `ray` for trials on a Ray cluster (extra `ray`).
        address: of the cluster: `auto`, `HOST:PORT` or `ray://HOST:PORT`; None for one of this machine's own.
        watcher: told of progress.
        values: keys of the scenario (`data`, `model`, `defences`, `attacks`, `client={"batch_size": 4}`, ...) that
            replace those of every scenario given.

    Example:
        >>> import fedseal, tempfile
        >>> run = fedseal.audit(
        ...     data="faces:size=8", attacks="ig:iterations=2", defences=["none", "topk:ratio=0.9"], targets=1,
        ...     out=tempfile.mkdtemp(),
        ... )
        >>> run.planned  # none, and topk by an attacker who does not know it and by one who does
        3
    """
    sources: list[Source | None] = []
    for given in scenarios:
        sources.extend(given if isinstance(given, list | tuple) else [given])
    return run_audit(
        [one for source in sources or [None] for one in scenarios_of(source, values)],
        out,
        data_root=data_root,
        device=device,
        workers=workers,
        engine=engine,
        address=address,
        command="fedseal.audit(...)",
        watcher=watcher,
    )
