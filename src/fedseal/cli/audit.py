"""`audit`, and what is done with its runs: `show`, `report`, `compare`, `merge`, `purge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedseal.cli.app import READERS, app
from fedseal.cli.options import (
    Address,
    Attacks,
    Baseline,
    Control,
    Data,
    DataRoot,
    Defences,
    Device,
    Engine,
    FailOn,
    Iterations,
    Model,
    Out,
    Redact,
    RunDirectory,
    Strict,
    Targets,
    Workers,
    chosen_scenarios,
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
    control: Control = None,
    baseline: Baseline = None,
    out: Out = Path("fedseal-audit"),
    data_root: DataRoot = None,
    device: Device = "cpu",
    workers: Workers = None,
    engine: Engine = "local",
    address: Address = None,
    redact: Redact = False,
) -> None:
    """Attack a federation's updates and report what leaks.

    Runs every attack on every defence, by attackers who do and do not know the
    defence. Killed or interrupted, the same command resumes; finished trials are
    never run twice.
    """
    from rich.console import Console

    from fedseal.audit.comparison import compare_runs
    from fedseal.audit.levels import RiskLevel
    from fedseal.audit.runner import open_run, run_audit
    from fedseal.report.comparison import render_comparison
    from fedseal.report.terminal import render_terminal
    from fedseal.report.write import write_reports

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    earlier = None if baseline is None else open_run(baseline)
    options = {
        "attacks": attack,
        "defences": defence,
        "data": data,
        "model": model,
        "targets": targets,
        "iterations": iterations,
        "seed": seed,
        "control": control,
        "client": {"batch_size": batch_size},
    }
    chosen = chosen_scenarios(scenario, options, command="audit")
    look_here_for_models()
    with watching() as watcher:
        where = run_options(data_root, device, workers) | {"engine": engine, "address": address}
        run = run_audit(chosen, out, **where, watcher=watcher)
    since = None if earlier is None else compare_runs(earlier, run)
    written = write_reports(run, out, redact=redact, fail_on=limit, strict=strict, comparison=since)
    Console().print(render_terminal(run))
    if since is not None:
        Console().print(render_comparison(since))
    typer.echo(f"report: {written['html']}")
    _exit_with(run, limit, strict, since)


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
    baseline: Baseline = None,
    training: Annotated[
        Path | None, typer.Option(help="Directory of `fedseal train` under the same defences: adds accuracies.")
    ] = None,
) -> None:
    """Write a run's report (HTML, JSON, JUnit, SARIF) again."""
    from fedseal.audit.comparison import compare_runs
    from fedseal.audit.levels import RiskLevel
    from fedseal.audit.runner import open_run
    from fedseal.report.write import write_reports
    from fedseal.training.run import open_training

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    loaded = open_run(run)
    since = None if baseline is None else compare_runs(open_run(baseline), loaded)
    trained = None if training is None else open_training(training)
    written = write_reports(
        loaded, out or run, redact=redact, fail_on=limit, strict=strict, comparison=since, training=trained
    )
    for path in written.values():
        typer.echo(str(path))
    _exit_with(loaded, limit, strict, since)


@app.command(rich_help_panel=READERS)
def compare(
    before: Annotated[Path, typer.Argument(help="Directory of the earlier run.")],
    after: Annotated[Path, typer.Argument(help="Directory of the later run.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Say what got better or worse from one run to another, beyond noise. Exit code 1 if anything got worse."""
    from rich.console import Console

    from fedseal.audit.comparison import compare_runs
    from fedseal.audit.runner import open_run
    from fedseal.report.comparison import render_comparison
    from fedseal.report.machine import comparison_data, json_text

    found = compare_runs(open_run(before), open_run(after))
    if json_output:
        typer.echo(json_text(comparison_data(found)), nl=False)
    else:
        Console().print(render_comparison(found))
    if found.worse:
        raise typer.Exit(1)


@app.command(rich_help_panel=READERS)
def merge(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs, of any machines.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="New directory for the merged run.")],
) -> None:
    """Merge runs that were made apart into one, by what determines each trial.

    A trial that several runs hold is taken once. Two results of one trial that
    differ are named, and nothing is written.
    """
    from fedseal.audit.merge import merge_runs

    run = merge_runs(runs, out)
    typer.echo(f"{out}: {len(run.records)} of {run.planned} trials, {len(run.scenarios)} scenarios.")


@app.command(rich_help_panel=READERS)
def purge(run: RunDirectory) -> None:
    """Remove private images from a run, or from all below a directory; scores stay.

    Originals, reconstructions and what attacks said of them are deleted, and the
    reports are written again without them. It cannot be undone.
    """
    from fedseal.report.purge import purge_runs

    for directory, removed in purge_runs(run):
        typer.echo(f"{directory}: {removed} files with private images removed; scores and reports without them stay.")


def _exit_with(run: Any, limit: Any, strict: bool, since: Any = None) -> None:
    verdict = run.verdict()
    if verdict.failed:
        raise typer.Exit(3)
    if not verdict.judged:
        refused = next((cell.refused for cell in verdict.cells if cell.refused is not None), None)
        hint = "Run the audit again: it resumes." if refused is None else refused.message
        raise UsageError("nothing could be judged: no trial succeeded.", hint=hint)
    if since is not None and since.worse:
        raise typer.Exit(1)
    if limit is None:
        return
    if run.fails(limit, strict=strict):
        raise typer.Exit(1)
    weak = run.powerless()
    if weak:
        typer.echo(f"no pass: too little was tried to judge {_states(weak)}.", err=True)
        raise typer.Exit(4)
    unsettled = [row for row in verdict.unsettled if not run.is_control(row)]
    if unsettled:
        typer.echo(f"passed, but nothing is known of {_states(unsettled)}: --strict fails on these.", err=True)


def _states(rows: Any) -> str:
    return ", ".join(f"{row.defence} ({'not judged' if row.state is None else row.state.words})" for row in rows)
