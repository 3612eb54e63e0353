"""`init` writes a first scenario for one's own model and data; `check` looks at a scenario without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import (
    Data,
    DataRoot,
    Device,
    Model,
    Workers,
    chosen_scenarios,
    command_line,
    look_here_for_models,
    run_options,
)
from fedseal.core.errors import UsageError


@app.command()
def init(
    model: Annotated[str, typer.Argument(help="Your model: package.module:attribute, a module, or a Python file.")],
    data: Annotated[str, typer.Argument(help="Your data: a folder with one sub-folder per class, or an .npz file.")],
    out: Annotated[Path, typer.Option(help="Scenario file to write.")] = Path("scenario.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    data_root: DataRoot = None,
) -> None:
    """Look at a model and at data and write a commented scenario for them."""
    from fedseal.audit.starting import look_at, scenario_text
    from fedseal.core.files import write_atomically
    from fedseal.models.registry import output_size

    if out.exists() and not force:
        raise UsageError(f"{out} exists.", hint="Choose another file with --out, or add --force.")
    look_here_for_models()
    look = look_at(model, data, data_root)
    write_atomically(out, scenario_text(look, command_line()))
    channels, height, width = look.dataset.shape
    outputs = output_size(look.network, look.dataset.probe())
    typer.echo(
        f"{look.model} takes the {len(look.dataset):,} images of {look.dataset.name} as {channels}x{height}x{width} "
        f"and answers with {outputs} output(s); {len(look.dataset.classes)} classes, loss {look.loss}."
    )
    for note in look.notes:
        typer.echo(note)
    typer.echo(f"written: {out}. Next: fedseal audit {out}")


@app.command()
def check(
    scenario: Annotated[
        list[Path] | None, typer.Argument(help="Scenario files (YAML); without one, the quick preset.")
    ] = None,
    data: Data = None,
    model: Model = None,
    data_root: DataRoot = None,
    device: Device = "cpu",
    workers: Workers = None,
) -> None:
    """Examine scenarios without attacking: what is wrong or remarkable, and what an audit would take.

    Exit code 2 if there is a problem that would make results mislead.
    """
    from rich.console import Console

    from fedseal.audit.doctor import told_once
    from fedseal.audit.runner import examine_only
    from fedseal.report.progress import TerminalProgress

    chosen = chosen_scenarios(scenario, {"data": data, "model": model}, command="check")
    look_here_for_models()
    at_once = run_options(data_root, device, workers)["workers"]
    found, forecast = examine_only(chosen, data_root=data_root, device=device, workers=at_once)
    printer = TerminalProgress(Console())
    for finding, where in told_once(found):
        printer.remarked(finding.severity, f"{finding.topic}: {finding.text}{where} {finding.advice}".strip())
    typer.echo(f"an audit takes {forecast.describe()}")
    problems = sum(finding.severity == "problem" for findings in found.values() for finding in findings)
    if problems:
        raise UsageError(f"{problems} problem(s) would make results mislead.", hint="They are listed above.")
    typer.echo("nothing stands in the way of an audit.")
