"""`train` and `tradeoff`: what defences cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedseal.cli.app import app
from fedseal.cli.options import DataRoot, command_line, default_workers, look_here_for_models, overridden


@app.command()
def train(
    scenario: Annotated[
        Path | None, typer.Argument(help="Training scenario (YAML); without one, a preset on embedded digits.")
    ] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help="Defence to train under, e.g. topk:ratio=0.9; repeatable.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data set, e.g. digits, cifar10, folder:PATH.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, e.g. lenet-relu, resnet18.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="Who holds what, e.g. iid, dirichlet:alpha=0.5, classes:per_client=2, file:PATH.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in the federation.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Independent repetition; repeatable.")] = None,
    out: Annotated[Path, typer.Option(help="Directory for store, checkpoints and report.")] = Path("fedseal-train"),
    table: Annotated[Path | None, typer.Option(help="Also write the results there as Markdown.")] = None,
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="Where clients train: cpu, cuda, cuda:1.")] = "cpu",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Clients trained at once; one per core by default.")
    ] = None,
) -> None:
    """Train a federation undefended and under each defence, and report the accuracy that is kept.

    Killed or interrupted, the same command resumes; what has ended is never trained again.
    """
    from rich.console import Console

    from fedseal.core.files import write_atomically
    from fedseal.report.training_page import write_training_report
    from fedseal.report.training_progress import TrainingProgress, render_training
    from fedseal.report.utility import render_utility
    from fedseal.training.runner import run_training
    from fedseal.training.scenario import load_training, validate_training

    overrides: dict[str, Any] = {
        "defences": defence,
        "data": data,
        "model": model,
        "partition": partition,
        "clients": clients,
        "seeds": seed,
        "federation.rounds": rounds,
    }
    chosen = overridden(scenario, "fedseal.training", load_training, validate_training, overrides)
    look_here_for_models()
    command = command_line()
    try:
        with TrainingProgress(Console(stderr=True)) as progress:
            run = run_training(
                chosen,
                out,
                data_root=data_root,
                device=device,
                workers=workers or default_workers(device),
                command=command,
                observer=progress,
            )
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to resume.", err=True)
        raise typer.Exit(130) from None
    written = write_training_report(run, out)
    if table is not None:
        write_atomically(table, render_utility(run))
    Console().print(render_training(run))
    typer.echo(f"report: {written}")
    if any(training.failed for training in run.trainings):
        raise typer.Exit(3)


@app.command()
def tradeoff(
    scenario: Annotated[
        Path | None, typer.Argument(help="Trade-off scenario (YAML); without one, a preset on embedded digits.")
    ] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help="Sweeps, e.g. dgp,topk:ratio=0.5/0.8/0.95,gaussian; repeatable.")
    ] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Attack to run, e.g. ig:tv=0.01; repeatable.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set, e.g. digits, cifar10, folder:PATH.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model that is trained, and attacked unless the next is given.")
    ] = None,
    attacked_model: Annotated[str | None, typer.Option(help="Model whose update is attacked.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of training.")] = None,
    targets: Annotated[int | None, typer.Option(min=1, help="Batches attacked per point.")] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Attack iterations, instead of each attack's own.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trainings per point.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the attacks and the first training.")] = None,
    out: Annotated[Path, typer.Option(help="Directory for both runs and the report.")] = Path("fedseal-tradeoff"),
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="Where both halves run: cpu, cuda, cuda:1.")] = "cpu",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Attacks or clients at once; one a core by default.")
    ] = None,
) -> None:
    """Draw what privacy costs: sweep defences, train under each strength and attack it.

    Accuracy kept (PMM) against PSNR, by attackers who do and do not know the defence, with intervals. Killed or
    interrupted, the same command resumes.
    """
    from rich.console import Console

    from fedseal.report.progress import TerminalProgress
    from fedseal.report.tradeoff import render_tradeoff, write_tradeoff_reports
    from fedseal.report.training_progress import TrainingProgress
    from fedseal.tradeoff.curves import attack_sweeps, open_tradeoff, train_sweeps
    from fedseal.tradeoff.scenario import load_tradeoff, validate_tradeoff
    from fedseal.tradeoff.sweeps import split_sweeps

    overrides: dict[str, Any] = {
        "defences": None if defence is None else [sweep for text in defence for sweep in split_sweeps(text)],
        "attacks": attack,
        "data": data,
        "model": model,
        "attacked_model": attacked_model or model,
        "targets": targets,
        "iterations": iterations,
        "seeds": seeds,
        "seed": seed,
        "federation.rounds": rounds,
    }
    chosen = overridden(scenario, "fedseal.tradeoff", load_tradeoff, validate_tradeoff, overrides)
    look_here_for_models()
    console = Console(stderr=True)
    command = command_line()
    at_once = workers or default_workers(device)
    try:
        with TerminalProgress(console) as attacking:
            attack_sweeps(
                chosen,
                out,
                data_root=data_root,
                device=device,
                workers=at_once,
                command=command,
                observer=attacking,
            )
        with TrainingProgress(console) as training:
            train_sweeps(
                chosen,
                out,
                data_root=data_root,
                device=device,
                workers=at_once,
                command=command,
                observer=training,
            )
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to resume.", err=True)
        raise typer.Exit(130) from None
    result = open_tradeoff(out)
    written = write_tradeoff_reports(result, out)
    typer.echo(render_tradeoff(result))
    typer.echo("written: " + ", ".join(str(path) for path in written.values()))
    if result.audit.verdict().failed or any(one.failed for one in result.training.trainings):
        raise typer.Exit(3)
