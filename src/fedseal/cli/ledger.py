"""`ledger`: what a site's clients have released and spent, and whether anybody has changed the record of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedseal.cli.app import READERS, app
from fedseal.core.errors import InputError

if TYPE_CHECKING:
    from fedseal.ledger import Summary

ledger_app = typer.Typer(help="A site's ledger: epsilon spent, budgets, releases; and whether it was changed.")
app.add_typer(ledger_app, name="ledger", rich_help_panel=READERS, no_args_is_help=True)

Ledger: TypeAlias = Annotated[Path, typer.Option("--ledger", help="The ledger's file.", envvar="FEDSEAL_LEDGER")]
Federation: TypeAlias = Annotated[str, typer.Option(help="Federation of the account.")]
Client: TypeAlias = Annotated[str, typer.Option(help="The site's own name of the client.")]
Dataset: TypeAlias = Annotated[str, typer.Option(help="Data set of the account.")]


@ledger_app.command("show")
def show_command(
    ledger: Ledger, json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False
) -> None:
    """List the accounts: releases counted by the client, epsilon spent, with its unit, and budgets."""
    import json

    from fedseal.ledger import SiteLedger

    found = SiteLedger(ledger, writable=False).accounts()
    if json_output:
        typer.echo(json.dumps([_as_dict(one) for one in found], indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("account", "releases", "epsilon", "budget", "hides", "last release")
    for one in found:
        table.add_row(*(Text(cell) for cell in _cells(one)))
    Console().print(table if found else "This ledger has no accounts yet.")


@ledger_app.command("export")
def export_command(
    out: Annotated[Path, typer.Argument(help="File to write; kept elsewhere, it proves later what was there.")],
    ledger: Ledger,
) -> None:
    """Write the whole chain as JSON: no weights, residuals or seeds are in it."""
    import json

    from fedseal.core.files import write_atomically
    from fedseal.ledger import SiteLedger

    content = SiteLedger(ledger, writable=False).export()
    write_atomically(out, json.dumps(content, indent=1), mode=0o600)
    typer.echo(f"{len(content['entries'])} entries written to {out}.")


@ledger_app.command("verify")
def verify_command(
    ledger: Ledger,
    against: Annotated[Path | None, typer.Option(help="An earlier export the ledger must begin with.")] = None,
) -> None:
    """Check every entry's hash, sum and state. Exit code 2 if anything was edited, deleted or replaced."""
    from fedseal.ledger import SiteLedger

    entries = SiteLedger(ledger, writable=False).verify(None if against is None else _read_export(against))
    head = entries[-1].hash if entries else "none"
    typer.echo(f"{ledger} is whole: {len(entries)} entries, newest {head}.")


@ledger_app.command("budget")
def budget_command(
    epsilon: Annotated[float, typer.Argument(help="The most an account may spend, over all rounds and runs.")],
    ledger: Ledger,
    delta: Annotated[float, typer.Option(help="At which epsilon is stated.")] = 1e-5,
    federation: Federation = "default",
    client: Client = "site",
    dataset: Dataset = "default",
) -> None:
    """Write an account's budget down: later rounds halt before they would pass it, whichever app runs."""
    from fedseal.ledger import Account, Budget, SiteLedger

    account = Account(federation, client, dataset)
    SiteLedger(ledger).set_budget(account, Budget(epsilon, delta))
    typer.echo(f"{account} may spend epsilon = {epsilon:g} at delta = {delta:g}.")


def _read_export(path: Path) -> Any:
    import json

    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an export: {error}.") from error


def _cells(one: Summary) -> tuple[str, ...]:
    value = one.epsilon.value
    spent = "unbounded" if value == float("inf") else f"{value:.4g}"
    without = f" ({one.page.unaccounted} without a guarantee)" if one.page.unaccounted else ""
    budget = "none" if one.budget is None else f"{one.budget.epsilon:g}"
    hides = "the client's whole update" if one.epsilon.unit == "update" else "a single sample"
    return (
        str(one.account),
        str(one.page.number),
        f"{spent} at delta {one.epsilon.delta:g}{without}",
        budget,
        hides,
        one.last or "never",
    )


def _as_dict(one: Summary) -> dict[str, Any]:
    value = one.epsilon.value
    return {
        "federation": one.account.federation,
        "client": one.account.client,
        "dataset": one.account.dataset,
        "releases": one.page.number,
        "unaccounted": one.page.unaccounted,
        "epsilon": None if value == float("inf") else value,
        "delta": one.epsilon.delta,
        "unit": one.epsilon.unit,
        "budget": None if one.budget is None else one.budget.epsilon,
        "last": one.last,
    }
