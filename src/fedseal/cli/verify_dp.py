"""`verify-dp`: a defence's claimed epsilon beside what its outputs prove."""

from __future__ import annotations

from typing import Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import look_here_for_models


@app.command("verify-dp")
def verify_dp_command(
    defence: Annotated[str, typer.Argument(help="Defence to attack, e.g. gaussian:sigma=1 or dp-sgd:sigma=1,clip=1.")],
    runs: Annotated[int, typer.Option(help="Independent rounds, half of them with a canary.")] = 4000,
    canaries: Annotated[int, typer.Option(help="Canaries in the one round that holds many.")] = 1000,
    delta: Annotated[float, typer.Option(help="At which epsilons are stated.")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Of each lower bound.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of coins and noise.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Attack a defence's implementation with canaries: does it leak more than it claims? Exit code 1 if so."""
    import json
    from functools import partial

    from fedseal.defences.pipeline import build_defence
    from fedseal.information.verification import verify_dp

    look_here_for_models()
    make = partial(build_defence, defence)
    found = verify_dp(make, runs=runs, canaries=canaries, delta=delta, confidence=confidence, seed=seed)
    typer.echo(json.dumps(found.as_dict(), indent=2) if json_output else found.describe())
    if found.refuted:
        raise typer.Exit(1)
