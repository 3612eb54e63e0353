"""The application every command registers with, and how it ends."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from fedseal._version import VERSION
from fedseal.core.errors import FedsealError

app = typer.Typer(
    name="fedseal",
    help="Audit and seal federated learning against gradient leakage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit codes: 0 clean, 1 risk at or above --fail-on or worse than --baseline, 2 usage or input error, "
    "3 trials failed, 4 too little power to pass.",
)

READERS = "Read a run"
"""The panel of commands that only read what others left."""


def main() -> NoReturn:
    """Run the command line; errors meant for a person become one line and an exit code."""
    try:
        app(standalone_mode=True)
    except FedsealError as error:
        _fail(error)
    sys.exit(0)


def _fail(error: FedsealError) -> NoReturn:
    typer.echo("error: " + " ".join(str(error).split()), err=True)
    sys.exit(error.exit_code)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedseal {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Audit and seal federated learning against gradient leakage."""
