"""`infer`: what updates tell without being inverted: who took part, what data have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import Data, DataRoot, Defences, Model, chosen_scenario, look_here_for_models


@app.command("infer")
def infer_command(
    question: Annotated[str, typer.Argument(help="membership, attribute:NAME or property:CLASS.")],
    scenario: Annotated[Path | None, typer.Argument(help="Scenario file (YAML); the quick one by default.")] = None,
    data: Data = None,
    model: Model = None,
    defence: Defences = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Records behind an update.")] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Clients asked.")] = 64,
    epochs: Annotated[int, typer.Option(min=0, help="Train on the members first: passes, for membership.")] = 0,
    shadows: Annotated[int, typer.Option(min=8, help="Rehearsed updates of public data.")] = 100,
    seed: Annotated[int | None, typer.Option(help="Of everything drawn.")] = None,
    data_root: DataRoot = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Infer without rebuilding: was a record in a client's data, do its records share an attribute, is a class most.

    AUC and the share found at 1 % and 0.1 % false alarms, with 95 % intervals; chance is 0.5, 1 % and 0.1 %.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from fedseal.audit.scenario import Scenario
    from fedseal.inference.ask import ask

    look_here_for_models()
    options = {"data": data, "model": model, "defences": defence, "client": {"batch_size": batch_size}, "seed": seed}
    chosen = chosen_scenario(scenario, Scenario, "audit", {**options, "targets": 1})
    errors = Console(stderr=True)
    with errors.status(f"asking {question}") as status:
        found = ask(
            chosen,
            question,
            rounds=rounds,
            epochs=epochs,
            shadows=shadows,
            data_root=data_root,
            told=lambda name: status.update(f"asking {question} of {name}"),
        )
    if json_output:
        typer.echo(json.dumps([one.as_dict() for one in found], indent=2))
        return
    table = Table(title=f"{found[0].question}; {found[0].yes} yes, {found[0].no} no", title_justify="left")
    for heading in ("defence", "score", "AUC (chance 0.5)", "found at 1 %", "found at 0.1 %", "risk"):
        table.add_column(heading)
    for one in found:
        rates = [f"{rate.found:.1%} [{rate.low:.1%}, {rate.high:.1%}]" for rate in one.rates]
        cells = [*rates, *["too few noes"] * (2 - len(rates))]
        area = f"{one.auc:.3f} [{one.auc_low:.3f}, {one.auc_high:.3f}]"
        table.add_row(one.defence, one.score, area, *cells, one.level)
    Console().print(table)
