"""`verify-dp`: a claimed epsilon beside the one a defence's outputs, or a configuration's parameters, prove."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import look_here_for_models
from fedseal.core.errors import UsageError


@app.command("verify-dp")
def verify_dp_command(
    defence: Annotated[
        str | None, typer.Argument(help="Defence to attack, e.g. gaussian:sigma=1 or dp-sgd:sigma=1,clip=1.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Or a configuration of Flower's, NVFlare's or Opacus' DP: YAML, JSON, TOML, .conf, .pt."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="With --config: rounds it composes over.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="With --config: claimed for the whole training, if the file does not say.")
    ] = None,
    parameters: Annotated[int | None, typer.Option(min=1, help="With --config: numbers the model has.")] = None,
    weights: Annotated[Path | None, typer.Option(help="With --config: the model (safetensors).")] = None,
    runs: Annotated[
        int | None, typer.Option(min=0, help="Independent rounds, half with a canary: 4000, or 1000 with --config.")
    ] = None,
    canaries: Annotated[int, typer.Option(help="Canaries in the one round that holds many.")] = 1000,
    delta: Annotated[float, typer.Option(help="At which epsilons are stated.")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Of each lower bound.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of coins and noise.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Ask whether a defence, or a configuration of DP, leaks more than it claims. Exit code 1 if so."""
    if (defence is None) == (config is None):
        raise UsageError("verify-dp needs a defence or --config FILE.", hint="Give one of them.")
    if config is not None:
        _configuration(config, rounds, epsilon, parameters, weights, runs, delta, confidence, seed, json_output)
        return
    import json
    from functools import partial

    from fedseal.defences.pipeline import build_defence
    from fedseal.information.verification import verify_dp

    look_here_for_models()
    make = partial(build_defence, str(defence))
    played = 4000 if runs is None else runs
    found = verify_dp(make, runs=played, canaries=canaries, delta=delta, confidence=confidence, seed=seed)
    typer.echo(json.dumps(found.as_dict(), indent=2) if json_output else found.describe())
    if found.refuted:
        raise typer.Exit(1)


def _configuration(
    config: Path,
    rounds: int | None,
    epsilon: float | None,
    parameters: int | None,
    weights: Path | None,
    runs: int | None,
    delta: float,
    confidence: float,
    seed: int,
    json_output: bool,
) -> None:
    import json

    from fedseal.information.claims.check import check_configuration

    found = check_configuration(
        config,
        rounds=rounds,
        claimed=epsilon,
        parameters=parameters,
        weights=weights,
        delta=delta,
        runs=1000 if runs is None else runs,
        confidence=confidence,
        seed=seed,
    )
    if json_output:
        typer.echo(json.dumps([check.as_dict() for check in found], indent=2))
    else:
        typer.echo("\n\n".join(check.describe() for check in found))
    if any(check.refuted for check in found):
        raise typer.Exit(1)
