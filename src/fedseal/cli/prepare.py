"""`prepare`: what is trained once and used many times; and `train-evaluator`, which writes such a thing into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import (
    Attacks,
    DataRoot,
    Defences,
    Device,
    chosen_scenario,
    look_here_for_models,
    watching,
)
from fedseal.core.errors import UsageError


@app.command()
def prepare(
    scenario: Annotated[
        list[Path] | None,
        typer.Argument(help="Scenario files (YAML) of audits; or `prior` or `model`, to train one on --data."),
    ] = None,
    attack: Attacks = None,
    defence: Defences = None,
    list_all: Annotated[bool, typer.Option("--list", help="List what was prepared so far.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what is damaged, left over or made by other code.")
    ] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Data set a prior or model is trained on, e.g. cifar10; repeatable for a prior."),
    ] = None,
    kind: Annotated[str, typer.Option(help="Of the prior: patch, ae, gan or diffusion.")] = "diffusion",
    out: Annotated[
        Path | None,
        typer.Option(help="File for the prior, named in `ig:prior=FILE`; its samples lie beside it. Or of weights."),
    ] = None,
    model: Annotated[str, typer.Option(help="Spec of the model that is trained, e.g. resnet10:width=16.")] = "",
    epochs: Annotated[int, typer.Option(help="Passes over the data that a model is trained for.", min=1)] = 10,
    batch_size: Annotated[int, typer.Option(help="Images per step of a model.", min=1)] = 64,
    normalise: Annotated[bool, typer.Option(help="Train the model on normalised images.")] = True,
    images: Annotated[int, typer.Option(help="Images it is trained on, at most; 0 for all.", min=0)] = 0,
    public_fraction: Annotated[
        float | None, typer.Option(help="Take of the data only what an audit with this public_fraction leaves public.")
    ] = None,
    seed: Annotated[int, typer.Option(help="That audit's seed; of a model, of weights and batches.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Steps of a prior's training; 0 for its kind's own.", min=0)] = 0,
    lr: Annotated[float, typer.Option(help="Learning rate; 0 for the usual one of what is trained.", min=0)] = 0.0,
    data_root: DataRoot = None,
    device: Device = "cpu",
) -> None:
    """Train beforehand what a scenario's attacks and defences need; or a prior of images, or a model's weights.

    It is kept in the cache and found there by everything that determines it.
    Killed or interrupted, the same command goes on where it was.
    """
    from fedseal.data.places import cache_directory
    from fedseal.preparation import library

    if scenario == [Path("prior")]:
        _prepare_prior(data or [], kind, out, (images, public_fraction, seed, steps, lr), data_root)
        return
    if scenario == [Path("model")]:
        _prepare_model(data or [], model, out, (images, epochs, batch_size, lr, normalise, seed), data_root, device)
        return
    if data or out or model:
        hint = "Write `fedseal prepare prior --data NAME` or `fedseal prepare model --data NAME --model SPEC`."
        raise UsageError("--data, --model and --out are for priors and models.", hint=hint)
    if bool(scenario) + list_all + prune != 1:
        raise UsageError("prepare takes scenario files, or --list, or --prune.", hint="Name one of the three.")
    directory = library().directory
    assert directory is not None
    if list_all:
        _list(directory)
    elif prune:
        _prune(directory, cache_directory())
    for path in scenario or ():
        _prepare(path, {"attacks": attack, "defences": defence}, data_root, device)


def _prepare(path: Path, options: dict[str, list[str] | None], data_root: Path | None, device: str) -> None:
    from fedseal.audit.preparation import prepare as prepare_scenario
    from fedseal.audit.scenario import Scenario

    chosen = chosen_scenario(path, Scenario, "prepare", options)
    look_here_for_models()
    with watching() as watcher:
        done = prepare_scenario(chosen, data_root=data_root, device=device, watcher=watcher)
    for one in done:
        typer.echo(f"{'found' if one.found else 'ready'}: {one.title} (for {one.wanted_by})")


def _prepare_prior(
    data: list[str],
    kind: str,
    out: Path | None,
    options: tuple[int, float | None, int, int, float],
    data_root: Path | None,
) -> None:
    from fedseal.priors.plan import plan_for
    from fedseal.priors.production import produce_prior

    images, fraction, seed, steps, lr = options
    with watching() as watcher:
        made = produce_prior(
            data,
            plan_for(kind, steps, lr),
            out or Path(f"prior-{kind}.safetensors"),
            images=images,
            public_fraction=fraction,
            split_seed=seed,
            data_root=data_root,
            watcher=watcher,
        )
    typer.echo(f"{'found' if made.found else 'ready'}: {made.title}")
    typer.echo(f"quality: {made.quality}")
    typer.echo(f"samples: {made.picture}")
    typer.echo(f"written: {made.path} (SHA-256 {made.sha256}); use it as ig:prior={made.path}")


def _prepare_model(
    data: list[str],
    model: str,
    out: Path | None,
    options: tuple[int, int, int, float, bool, int],
    data_root: Path | None,
    device: str,
) -> None:
    from fedseal.training.weights import recipe, train_weights

    if len(data) != 1 or not model:
        hint = "Write `fedseal prepare model --data cifar10 --model resnet10:width=16`."
        raise UsageError("a model is trained on one data set.", hint=hint)
    images, epochs, batch_size, lr, normalise, seed = options
    scenario = recipe(
        data[0],
        model,
        images=images,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=lr or 0.03,
        normalise=normalise,
        seed=seed,
    )
    look_here_for_models()
    with watching() as watcher:
        made = train_weights(
            scenario, out or Path("model.safetensors"), data_root=data_root, device=device, watcher=watcher
        )
    typer.echo(f"quality: {made.sentence}")
    typer.echo(f"written: {made.path} (SHA-256 {made.sha256}); use it as {made.spec}")
    if normalise:
        typer.echo("It was trained on normalised images: set `client.normalise: true` where it is audited.")


def _list(directory: Path) -> None:
    from rich.console import Console

    from fedseal.preparation import items
    from fedseal.report.listing import render_prepared

    found = items(directory)
    Console().print(render_prepared(found) if found else f"nothing was prepared yet; it would lie in {directory}.")


def _prune(directory: Path, cache: Path) -> None:
    from fedseal.preparation import prune

    gone = prune(directory, cache)
    for item in gone:
        typer.echo(f"deleted {item.state}: {item.title}")
    typer.echo(f"{len(gone)} files, {sum(item.size for item in gone) / 1e6:.1f} MB")


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
    from fedseal.defences.refiner.evaluator import parse_architecture
    from fedseal.defences.refiner.fitting import TrainingPlan
    from fedseal.defences.refiner.production import produce_evaluator

    if not (0 < lr < float("inf") and steps > 0 and batch_size > 0 and 0 <= structured <= 1):
        raise UsageError(
            f"{steps} steps of {batch_size} images at a rate of {lr} with a share of {structured} are no training.",
            hint="Steps, images and rate are positive, the share is from 0 to 1.",
        )
    plan = TrainingPlan(parse_architecture(architecture), steps, batch_size, lr, structured, seed)
    with watching() as watcher:
        produced = produce_evaluator(data, check or [], plan, out, data_root=data_root, watcher=watcher)
    if produced.measured:
        typer.echo(produced.table())
    typer.echo(f"written: {produced.path} (SHA-256 {produced.sha256})")
