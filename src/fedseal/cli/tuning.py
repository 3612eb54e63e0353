"""`tune-attack`: settings of attacks, chosen on updates of public images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import DataRoot, Defences, Device, Model, chosen_scenario


@app.command("tune-attack")
def tune_attack_command(
    scenario: Annotated[Path | None, typer.Argument(help="Scenario file (YAML); the quick one by default.")] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="Attack to tune, e.g. ig:schedule=cosine; repeatable.")
    ] = None,
    defence: Defences = None,
    model: Model = None,
    trials: Annotated[int, typer.Option(min=1, help="Settings to try in all.")] = 24,
    iterations: Annotated[int, typer.Option(min=1, help="Attack iterations on each shadow.")] = 300,
    shadows: Annotated[int, typer.Option(min=2, help="Updates of public images to tune on.")] = 4,
    data_root: DataRoot = None,
    device: Device = "cpu",
) -> None:
    """Tune attacks on shadow targets made of public images; interrupted, the same command resumes.

    The settings are kept in the cache, where `auto` finds them for the same model, public images and defence.
    """
    from rich.console import Console
    from rich.progress import Progress

    from fedseal.audit.scenario import Scenario
    from fedseal.audit.tuning import tune_attacks

    chosen = chosen_scenario(scenario, Scenario, "audit", {"defences": defence, "model": model})
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tuning", total=None)

        def heard(name: str, number: int, spec: str, quality: float) -> None:
            bar.update(task, completed=number + 1, description=f"{name}: {spec}: {quality:.1f} dB")

        found = tune_attacks(
            chosen,
            tuple(attack or ["ig"]),
            trials=trials,
            iterations=iterations,
            shadows=shadows,
            data_root=data_root,
            device=device,
            heard=heard,
        )
    for one in found:
        result = one.result
        gain = f"{result.untuned:.1f} dB as given, {result.quality:.1f} dB tuned, {result.trials} settings tried"
        typer.echo(f"{one.defence}: {result.spec} ({gain})")
