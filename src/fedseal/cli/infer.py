"""`infer`: what updates tell without being inverted: who took part, what data have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedseal.cli.app import app
from fedseal.cli.options import Data, DataRoot, Defences, Model, chosen_scenario, look_here_for_models

if TYPE_CHECKING:
    from rich.table import Table

    from fedseal.inference.outcome import Outcome


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
    Low is said only of what is proven: that these scores fail shows nothing of others.
    """
    import json

    from rich.console import Console

    from fedseal.audit.scenario import Scenario
    from fedseal.inference.ask import ask
    from fedseal.inference.outcome import sentence

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
    Console().print(_table(found))
    for name in dict.fromkeys(one.defence for one in found):
        typer.echo(sentence([one for one in found if one.defence == name]))


def _table(found: Sequence[Outcome]) -> Table:
    """Return a row for every score; only the rates that some row could resolve."""
    from rich.table import Table

    from fedseal.inference.outcome import RATES

    shown = max(len(one.rates) for one in found)
    table = Table(title=f"{found[0].question}; {found[0].yes} yes, {found[0].no} no", title_justify="left")
    rates = [f"found at {rate:.1%}".replace(".0%", "%").replace("%", " %") for rate in RATES[:shown]]
    for heading in ("defence", "score", "AUC", *rates, "risk"):
        table.add_column(heading, no_wrap=heading not in ("defence", "risk"), overflow="fold")
    for one in found:
        cells = [f"{rate.found:.0%} [{100 * rate.low:.0f}, {100 * rate.high:.0f}]" for rate in one.rates]
        area = f"{one.auc:.2f} [{one.auc_low:.2f}, {one.auc_high:.2f}]"
        table.add_row(one.defence, one.score, area, *cells, one.level)
    return table
