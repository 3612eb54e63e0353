"""`detect`: look at a received model before answering."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import DataRoot, image_shape, look_here_for_models


@app.command("detect")
def detect_command(
    model: Annotated[str, typer.Option(help="Model: a name of `fedseal list models`, or package.module:attribute.")],
    checkpoint: Annotated[Path | None, typer.Option(help="Received weights (safetensors).")] = None,
    data: Annotated[str | None, typer.Option(help="Data the client would train on; without, weights alone.")] = None,
    input_shape: Annotated[str | None, typer.Option(help="C,H,W of an image, without --data.")] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Outputs of the model, without --data.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples to answer with.")] = 16,
    train_mode: Annotated[bool, typer.Option(help="Batch normalisation with the batch's statistics.")] = False,
    seed: Annotated[int, typer.Option(help="Of the samples drawn.")] = 0,
    data_root: DataRoot = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Look at a received model before answering: is it a weapon? Exit code 1 if so."""
    import json

    from fedseal.detection.received import inspect_checkpoint

    look_here_for_models()
    found = inspect_checkpoint(
        model,
        checkpoint,
        data=data,
        input_shape=image_shape(input_shape),
        num_classes=classes,
        batch_size=batch_size,
        train_mode=train_mode,
        seed=seed,
        data_root=data_root,
    )
    typer.echo(json.dumps(found.as_dict(), indent=2) if json_output else found.describe())
    if found.suspicious:
        raise typer.Exit(1)
