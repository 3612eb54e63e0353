"""`audit`, and what is done with its runs: `show`, `report`, `table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedseal.cli.app import READERS, app
from fedseal.cli.options import (
    Attacks,
    Data,
    DataRoot,
    Defences,
    Device,
    FailOn,
    Iterations,
    Model,
    Out,
    Redact,
    RunDirectory,
    Strict,
    Targets,
    Workers,
    chosen_scenario,
    look_here_for_models,
    run_options,
    watching,
)
from fedseal.core.errors import UsageError


@app.command()
def audit(
    scenario: Annotated[
        list[Path] | None, typer.Argument(help="Scenario files (YAML); without one, the quick preset on embedded data.")
    ] = None,
    attack: Attacks = None,
    defence: Defences = None,
    data: Data = None,
    model: Model = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per client step.")] = None,
    targets: Targets = None,
    iterations: Iterations = None,
    seed: Annotated[int | None, typer.Option(help="Determines split, weights, targets, noise and attack.")] = None,
    fail_on: FailOn = None,
    strict: Strict = False,
    out: Out = Path("fedseal-audit"),
    data_root: DataRoot = None,
    device: Device = "cpu",
    workers: Workers = None,
    redact: Redact = False,
) -> None:
    """Attack a federation's updates and report what leaks.

    Runs every attack on every defence, by attackers who do and do not know the
    defence. Killed or interrupted, the same command resumes; finished trials are
    never run twice.
    """
    from rich.console import Console

    from fedseal.audit.levels import RiskLevel
    from fedseal.audit.runner import run_audit
    from fedseal.audit.scenario import Scenario
    from fedseal.report.terminal import render_terminal
    from fedseal.report.write import write_reports

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    options = {
        "attacks": attack,
        "defences": defence,
        "data": data,
        "model": model,
        "targets": targets,
        "iterations": iterations,
        "seed": seed,
        "client": {"batch_size": batch_size},
    }
    paths: list[Path | None] = [*scenario] if scenario else [None]
    chosen = [chosen_scenario(path, Scenario, "audit", options) for path in paths]
    look_here_for_models()
    with watching() as watcher:
        run = run_audit(chosen, out, **run_options(data_root, device, workers), watcher=watcher)
    written = write_reports(run, out, redact=redact, fail_on=limit, strict=strict)
    Console().print(render_terminal(run))
    typer.echo(f"report: {written['html']}")
    _exit_with(run, limit, strict)


@app.command(rich_help_panel=READERS)
def show(run: RunDirectory) -> None:
    """Show a run's verdict in the terminal."""
    from rich.console import Console

    from fedseal.audit.runner import open_run
    from fedseal.report.terminal import render_terminal

    Console().print(render_terminal(open_run(run)))


@app.command(rich_help_panel=READERS)
def report(
    run: RunDirectory,
    out: Annotated[Path | None, typer.Option(help="Where to write; the run's directory by default.")] = None,
    redact: Redact = False,
    fail_on: FailOn = None,
    strict: Strict = False,
) -> None:
    """Write a run's report (HTML, JSON, JUnit) again."""
    from fedseal.audit.levels import RiskLevel
    from fedseal.audit.runner import open_run
    from fedseal.report.write import write_reports

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    loaded = open_run(run)
    for path in write_reports(loaded, out or run, redact=redact, fail_on=limit, strict=strict).values():
        typer.echo(str(path))
    _exit_with(loaded, limit, strict)


@app.command(rich_help_panel=READERS)
def table(
    run: RunDirectory,
    overview: Annotated[
        bool, typer.Option("--overview", help="Begin with defences against attacks: PSNR and SSIM, naive / aware.")
    ] = False,
) -> None:
    """Print a run's results as Markdown tables."""
    from fedseal.audit.runner import open_run
    from fedseal.report.markdown import render_markdown
    from fedseal.report.overview import render_overview

    loaded = open_run(run)
    if overview:
        typer.echo(render_overview(loaded))
    typer.echo(render_markdown(loaded), nl=False)


@app.command(rich_help_panel=READERS)
def purge(run: RunDirectory) -> None:
    """Remove private images from a run, or from all below a directory; scores stay.

    Originals, reconstructions and what attacks said of them are deleted, and the
    reports are written again without them. It cannot be undone.
    """
    from fedseal.report.purge import purge_runs

    for directory, removed in purge_runs(run):
        typer.echo(f"{directory}: {removed} files with private images removed; scores and reports without them stay.")


def _exit_with(run: Any, limit: Any, strict: bool) -> None:
    verdict = run.verdict()
    if verdict.failed:
        raise typer.Exit(3)
    if not verdict.judged:
        refused = next((cell.refused for cell in verdict.cells if cell.refused is not None), None)
        hint = "Run the audit again: it resumes." if refused is None else refused.message
        raise UsageError("nothing could be judged: no trial succeeded.", hint=hint)
    if limit is not None and verdict.fails(limit, strict=strict):
        raise typer.Exit(1)
    if limit is not None and verdict.unsettled:
        names = ", ".join(f"{row.defence} ({row.state.words})" for row in verdict.unsettled)
        typer.echo(f"passed, but nothing is known of {names}: --strict fails on these.", err=True)
