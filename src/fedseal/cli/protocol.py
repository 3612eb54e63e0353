"""`protocol`: FedLeak's factors, one at a time, as one command; and the same report for any plan with factors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedseal.cli.app import app
from fedseal.cli.options import (
    Address,
    DataRoot,
    Device,
    Engine,
    Out,
    Workers,
    look_here_for_models,
    preset,
    run_options,
    watching,
)
from fedseal.core.errors import UsageError

if TYPE_CHECKING:
    from fedseal.audit.scenario import Scenario

SCALES = ("laptop", "workstation", "paper")


def _tell(chosen: Sequence[Scenario], **where: Any) -> None:
    """Print the levels of each factor, and what running them all takes."""
    from fedseal.audit.runner import examine_only, levels_of

    for factor, levels in levels_of(chosen).items():
        typer.echo(f"{factor}: {', '.join(levels)}")
    _, forecast = examine_only(chosen, **where)
    typer.echo(f"{len(chosen)} scenarios: {forecast.describe()}")


@app.command()
def protocol(
    scenario: Annotated[Path | None, typer.Argument(help="A plan of your own: a scenario file with factors.")] = None,
    scale: Annotated[str, typer.Option(help="The shipped plan: laptop, workstation or paper.")] = "laptop",
    out: Out = Path("fedseal-protocol"),
    data_root: DataRoot = None,
    device: Device = "cpu",
    workers: Workers = None,
    engine: Engine = "local",
    address: Address = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it will take, and run nothing.")] = False,
) -> None:
    """Audit what decides a leak: batch size, model, data, stage, initialisation, ...

    Each factor varies alone, as in FedLeak's protocol (Table 2). The answers, one
    sentence per factor with interval and reading, go to protocol.html, .md, .csv
    and .json beside the store. The same command resumes.
    """
    from fedseal.audit.factor_tables import factor_tables
    from fedseal.audit.factors import scenarios_of
    from fedseal.audit.runner import run_audit
    from fedseal.report.protocol import write_protocol
    from fedseal.report.words import plural

    if scale not in SCALES:
        raise UsageError(f"there is no scale {scale!r}.", hint=f"Use one of: {', '.join(SCALES)}.")
    source: Path | str = scenario or preset("fedseal.audit.scenario", f"protocol-{scale}")
    chosen = scenarios_of(source, command="protocol")
    if not any(one.levels for one in chosen):
        raise UsageError("nothing varies in this plan.", hint="Give a key several values, see docs/scenario.md.")
    look_here_for_models()
    if plan:
        _tell(chosen, data_root=data_root, device=device, workers=run_options(data_root, device, workers)["workers"])
        return
    with watching() as watcher:
        where = run_options(data_root, device, workers) | {"engine": engine, "address": address}
        run = run_audit(chosen, out, **where, watcher=watcher)
    path = write_protocol(run, out)
    for table in factor_tables(run):
        typer.echo(f"{table.sentence()} ({table.surroundings})")
    typer.echo(f"report: {path}")
    if failed := [record for record in run.records if record.status == "failed"]:
        for message, count in Counter(record.message for record in failed).items():
            typer.echo(f"{plural(count, 'trial')} failed: {message}", err=True)
        raise typer.Exit(3)
