"""`audit`, and what is done with its runs: `show`, `report`, `table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedseal.cli.app import app
from fedseal.cli.options import DataRoot, command_line, default_workers, look_here_for_models, overridden
from fedseal.core.errors import UsageError


@app.command()
def audit(
    scenario: Annotated[
        list[Path] | None, typer.Argument(help="Scenario files (YAML); without one, the quick preset on embedded data.")
    ] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Attack to run, e.g. ig:tv=0.01; repeatable.")] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help="Defence to audit, e.g. topk:ratio=0.9 or gaussian+topk; repeatable.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data set, e.g. digits, cifar10, folder:PATH.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, e.g. lenet, resnet18, package.module:attribute.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per client step.")] = None,
    targets: Annotated[int | None, typer.Option(help="Independent batches attacked per cell.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Attack iterations, instead of each attack's own.")] = None,
    seed: Annotated[int | None, typer.Option(help="Determines split, weights, targets, noise and attack.")] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(help="Exit with 1 if any audited defence is at this risk or above: low, medium, high, very-high."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for store, images and reports.")] = Path("fedseal-audit"),
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="Where attacks run: cpu, cuda, cuda:1.")] = "cpu",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that run trials; one per core by default on a CPU.")
    ] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Leave private images out of the report.")] = False,
) -> None:
    """Attack a federation's updates and report what leaks.

    Runs every attack on every defence, by attackers who do and do not know the defence. Killed or interrupted, the
    same command resumes; finished trials are never run twice.
    """
    from rich.console import Console

    from fedseal.audit.runner import run_audit
    from fedseal.audit.scenario import load_scenario, validate_scenario
    from fedseal.audit.verdict import RiskLevel
    from fedseal.report.progress import TerminalProgress
    from fedseal.report.terminal import render_terminal
    from fedseal.report.write import write_reports

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    overrides: dict[str, Any] = {
        "attacks": attack,
        "defences": defence,
        "data": data,
        "model": model,
        "targets": targets,
        "iterations": iterations,
        "seed": seed,
        "client.batch_size": batch_size,
    }
    paths: list[Path | None] = [*scenario] if scenario else [None]
    chosen = [overridden(path, "fedseal.audit", load_scenario, validate_scenario, overrides) for path in paths]
    look_here_for_models()
    try:
        with TerminalProgress(Console(stderr=True)) as progress:
            run = run_audit(
                chosen,
                out,
                data_root=data_root,
                device=device,
                workers=workers or default_workers(device),
                command=command_line(),
                observer=progress,
            )
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to resume.", err=True)
        raise typer.Exit(130) from None
    written = write_reports(run, out, redact=redact, fail_on=limit)
    Console().print(render_terminal(run))
    typer.echo(f"report: {written['html']}")
    _exit_with(run, limit)


@app.command()
def show(run: Annotated[Path, typer.Argument(help="Directory of a run.")]) -> None:
    """Show a run's verdict in the terminal."""
    from rich.console import Console

    from fedseal.audit.runner import open_run
    from fedseal.report.terminal import render_terminal

    Console().print(render_terminal(open_run(run)))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; the run's directory by default.")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Leave private images out of the report.")] = False,
    fail_on: Annotated[str | None, typer.Option(help="Exit with 1 at this risk or above.")] = None,
) -> None:
    """Write a run's report (HTML, JSON, JUnit) again."""
    from fedseal.audit.runner import open_run
    from fedseal.audit.verdict import RiskLevel
    from fedseal.report.write import write_reports

    limit = None if fail_on is None else RiskLevel.parse(fail_on)
    loaded = open_run(run)
    for path in write_reports(loaded, out or run, redact=redact, fail_on=limit).values():
        typer.echo(str(path))
    _exit_with(loaded, limit)


@app.command()
def table(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
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


def _exit_with(run: Any, limit: Any) -> None:
    verdict = run.verdict()
    if verdict.failed:
        raise typer.Exit(3)
    if verdict.level is None:
        refused = next((cell.refused for cell in verdict.cells if cell.refused is not None), None)
        hint = "Run the audit again: it resumes." if refused is None else refused.message
        raise UsageError("nothing could be judged: no trial succeeded.", hint=hint)
    if limit is not None and verdict.level is not None and verdict.level >= limit:
        raise typer.Exit(1)
