"""The application every command registers with, and how it ends."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, NoReturn

import typer

from fedseal._version import VERSION
from fedseal.core.errors import FedsealError
from fedseal.core.logs import configure_logs

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

_LOG = logging.getLogger("fedseal")

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
    sentence = " ".join(str(error).split())
    if _LOG.handlers:
        _LOG.error(sentence, extra={"exit_code": error.exit_code})
    else:
        typer.echo("error: " + sentence, err=True)
    sys.exit(error.exit_code)


def _log_format(value: str | None) -> str | None:
    return configure_logs(value)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedseal {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    log_format: Annotated[
        str | None,
        typer.Option(callback=_log_format, is_eager=True, help="text, or json for one object per line on stderr."),
    ] = None,
) -> None:
    """Audit and seal federated learning against gradient leakage."""
