"""`train` and `tradeoff`: what defences cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import (
    Attacks,
    Data,
    DataRoot,
    Defences,
    Device,
    Iterations,
    Model,
    Out,
    Rounds,
    Targets,
    Workers,
    chosen_scenario,
    look_here_for_models,
    run_options,
    watching,
)


@app.command()
def train(
    scenario: Annotated[
        Path | None, typer.Argument(help="Training scenario (YAML); without one, a preset on embedded digits.")
    ] = None,
    defence: Defences = None,
    data: Data = None,
    model: Model = None,
    partition: Annotated[
        str | None, typer.Option(help="Who holds what, e.g. iid, dirichlet:alpha=0.5, classes:per_client=2, file:PATH.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in the federation.")] = None,
    rounds: Rounds = None,
    seed: Annotated[list[int] | None, typer.Option(help="Independent repetition; repeatable.")] = None,
    out: Out = Path("fedseal-train"),
    table: Annotated[Path | None, typer.Option(help="Also write the results there as Markdown.")] = None,
    data_root: DataRoot = None,
    device: Device = "cpu",
    workers: Workers = None,
) -> None:
    """Train a federation undefended and under each defence, and report the accuracy that is kept.

    Killed or interrupted, the same command resumes; what has ended is never
    trained again.
    """
    from rich.console import Console

    from fedseal.core.files import write_atomically
    from fedseal.report.training_page import write_training_report
    from fedseal.report.training_table import render_training
    from fedseal.report.utility import render_utility
    from fedseal.training.runner import run_training
    from fedseal.training.scenario import TrainingScenario

    options = {
        "defences": defence,
        "data": data,
        "model": model,
        "partition": partition,
        "clients": clients,
        "seeds": seed,
        "federation": {"rounds": rounds},
    }
    chosen = chosen_scenario(scenario, TrainingScenario, "train", options)
    look_here_for_models()
    with watching() as watcher:
        run = run_training(chosen, out, **run_options(data_root, device, workers), watcher=watcher)
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
    attack: Attacks = None,
    data: Data = None,
    model: Model = None,
    attacked_model: Annotated[
        str | None, typer.Option(help="Model whose update is attacked, if it is not the trained one.")
    ] = None,
    rounds: Rounds = None,
    targets: Targets = None,
    iterations: Iterations = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trainings per point.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the attacks and the first training.")] = None,
    out: Out = Path("fedseal-tradeoff"),
    data_root: DataRoot = None,
    device: Device = "cpu",
    workers: Workers = None,
) -> None:
    """Draw what privacy costs: sweep defences, train under each strength and attack it.

    Accuracy kept (PMM) against PSNR, by attackers who do and do not know the
    defence, with intervals. Killed or interrupted, the same command resumes.
    """
    from fedseal.report.tradeoff import render_tradeoff, write_tradeoff_reports
    from fedseal.tradeoff.curves import run_tradeoff
    from fedseal.tradeoff.scenario import TradeoffScenario
    from fedseal.tradeoff.sweeps import split_sweeps

    options = {
        "defences": None if defence is None else [sweep for text in defence for sweep in split_sweeps(text)],
        "attacks": attack,
        "data": data,
        "model": model,
        "attacked_model": attacked_model or model,
        "targets": targets,
        "iterations": iterations,
        "seeds": seeds,
        "seed": seed,
        "federation": {"rounds": rounds},
    }
    chosen = chosen_scenario(scenario, TradeoffScenario, "tradeoff", options)
    look_here_for_models()
    with watching() as watcher:
        result = run_tradeoff(chosen, out, **run_options(data_root, device, workers), watcher=watcher)
    written = write_tradeoff_reports(result, out)
    typer.echo(render_tradeoff(result))
    typer.echo("written: " + ", ".join(str(path) for path in written.values()))
    if result.audit.verdict().failed or any(one.failed for one in result.training.trainings):
        raise typer.Exit(3)
