"""`claims`: what the papers say, each as a check declared beforehand, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

import typer

from fedseal.cli.app import app
from fedseal.cli.options import Address, DataRoot, Engine, Workers, run_options, watching

if TYPE_CHECKING:
    from fedseal.audit.runner import EngineName
    from fedseal.claims.claim import Claim
    from fedseal.claims.ledger import Outcome

claims_app = typer.Typer(help="What the papers claim, each decided by a check that was declared before it ran.")
app.add_typer(claims_app, name="claims")

Kept: TypeAlias = Annotated[Path, typer.Option("--out", help="Directory of the ledger; the same one resumes.")]
Names: TypeAlias = Annotated[
    list[str] | None, typer.Argument(help="Claims such as F1 R4, or a paper's letter (F, R, D, A, L); all without.")
]
_OUT = Path("fedseal-claims")


@claims_app.callback(invoke_without_command=True)
def ledger_command(context: typer.Context, out: Kept = _OUT) -> None:
    """Print the ledger: every claim, and what came of it, in a directory of one's own or where fedseal is made."""
    if context.invoked_subcommand is not None:
        return
    from fedseal.claims.claim import declared
    from fedseal.claims.ledger import load_ledger, load_outcome

    outcomes = load_ledger(out)
    _print_ledger(list(declared().values()), outcomes)
    own = sum(load_outcome(out, claim) is not None for claim in declared().values())
    typer.echo(f"{own} of these outcomes are of {out}, {len(outcomes) - own} come with fedseal.")
    typer.echo("`fedseal claims show ID` has a claim's evidence, `fedseal claims run ID` decides it here.")


@claims_app.command("run")
def run_command(
    names: Names = None,
    out: Kept = _OUT,
    data_root: DataRoot = None,
    workers: Workers = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """Decide claims; what has run already is not run again."""
    from fedseal.audit.runner import check_engine
    from fedseal.claims.claim import find_claims
    from fedseal.claims.place import Place
    from fedseal.claims.runner import run_claims

    chosen = find_claims(names or [])
    check_engine(engine, address)
    with watching() as watcher:
        at_once = run_options(data_root, "cpu", workers)["workers"]
        place = Place(out, data_root, at_once, cast("EngineName", engine), address, watcher)
        for outcome in run_claims(chosen, place):
            watcher.remarked("note", f"{outcome.id}: {outcome.standing}. {outcome.why}".rstrip())
    from fedseal.claims.ledger import load_ledger

    _print_ledger(list(chosen), load_ledger(out))


@claims_app.command("show")
def show_command(name: Annotated[str, typer.Argument(help="A claim, such as F1.")], out: Kept = _OUT) -> None:
    """Print a claim: its words, published numbers, checks, and what they came to."""
    from fedseal.claims.claim import find_claims
    from fedseal.claims.ledger import load_outcome, shipped_outcome
    from fedseal.report.claims import claim_text

    for claim in find_claims([name]):
        typer.echo(claim_text(claim, load_outcome(out, claim) or shipped_outcome(claim)))


@claims_app.command("write")
def write_command(
    to: Annotated[Path, typer.Argument(help="Directory for claims.md, claims.html and claims.json.")], out: Kept = _OUT
) -> None:
    """Write the ledger as pages."""
    from fedseal.claims.ledger import load_ledger
    from fedseal.report.claims import write_claims

    for path in write_claims(load_ledger(out), to):
        typer.echo(f"wrote {path}")


def _print_ledger(claims: list[Claim], outcomes: dict[str, Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedseal.report.claims import standing_words, tally

    table = Table("claim", "says", "stands", show_lines=False)
    for claim in claims:
        table.add_row(claim.id, Text(claim.claim), Text(standing_words(claim, outcomes.get(claim.id))))
    Console().print(table)
    typer.echo(tally(claims, outcomes))
