"""`train-evaluator` and `train-seer`: networks that are trained once and used many times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import DataRoot, Device, chosen_scenario


@app.command("train-evaluator")
def train_evaluator_command(
    data: Annotated[list[str], typer.Option(help="Public data set to train on, e.g. cifar10 or npz:PATH; repeatable.")],
    check: Annotated[
        list[str] | None, typer.Option(help="Data set to measure it on, best one it never saw; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("evaluator.safetensors"),
    architecture: Annotated[str, typer.Option(help="small, or paper: 128, 256 and 512 filters.")] = "small",
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 10_000,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 128,
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = 2e-3,
    structured: Annotated[float, typer.Option(help="Share of drawn images among those trained on.")] = 0.25,
    seed: Annotated[int, typer.Option(help="Determines weights, images and noise.")] = 0,
    data_root: DataRoot = None,
) -> None:
    """Train Refiner's evaluation network on public images, for `refiner:evaluator=FILE`."""
    from rich.console import Console
    from rich.progress import Progress

    from fedseal.defences.refiner.evaluator import parse_architecture
    from fedseal.defences.refiner.fitting import TrainingPlan
    from fedseal.defences.refiner.production import produce_evaluator

    plan = TrainingPlan(parse_architecture(architecture), steps, batch_size, lr, structured, seed)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=steps)
        produced = produce_evaluator(
            data,
            check or [],
            plan,
            out,
            data_root=data_root,
            progress=lambda done, loss: bar.update(task, completed=done, description=f"training, loss {loss:.4f}"),
        )
    if produced.measured:
        typer.echo(produced.table())
    typer.echo(f"written: {produced.path} (SHA-256 {produced.sha256})")


@app.command("train-seer")
def train_seer_command(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML) with `seer` attacks.")],
    attack: Annotated[
        list[str] | None, typer.Option(help="Attack to train instead, e.g. seer:property=red; repeatable.")
    ] = None,
    data_root: DataRoot = None,
    device: Device = "cpu",
) -> None:
    """Train the SEER attackers a scenario needs; interrupted, the same command resumes. They are kept in the cache."""
    from rich.console import Console
    from rich.progress import Progress

    from fedseal.audit.scenario import Scenario
    from fedseal.audit.seer import train_attackers

    chosen = chosen_scenario(scenario, Scenario, "audit", {"attacks": attack})
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=None)
        done = train_attackers(
            chosen,
            data_root=data_root,
            device=device,
            progress=lambda spec, step, loss: bar.update(
                task, completed=step, description=f"{spec}: step {step}, loss {loss:.5f}"
            ),
        )
    for one in done:
        loss = one.attacker.curve[-1][1]
        typer.echo(f"{one.spec}: {one.attacker.plan.steps} steps in {one.attacker.seconds:.0f} s, last loss {loss:.5f}")
