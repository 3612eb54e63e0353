"""The application every command registers with, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
import traceback
from typing import Annotated, NoReturn

import click
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
    suggest_commands=not hasattr(click.exceptions, "NoSuchCommand"),  # which suggests some itself
    epilog="Exit codes: 0 clean, 1 risk at or above --fail-on or worse than --baseline, 2 usage or input error, "
    "3 trials failed, 4 too little power to pass.",
)

_LOG = logging.getLogger("fedseal")
_INTERRUPTED = 130
_UNREAD = 141
"""As a shell says it of a command whose reader has gone (`| head`): no error, and no success either."""
_NOWHERE = {errno.EPIPE, errno.ENOSPC}
"""Of what a command prints: nobody reads on, or the disk it goes to is full."""
_TRACEBACK = "FEDSEAL_TRACEBACK"

READERS = "Read a run"
"""The panel of commands that only read what others left."""


def main() -> NoReturn:
    """Run the command line; errors become one line and an exit code.

    No exit code 1 by accident: that one says that a risk was found, and a build believes it.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console that knows no umlauts is no reason to stop
    try:
        app(standalone_mode=True)
    except FedsealError as error:
        _fail(str(error), error.exit_code)
    except SystemExit as leaving:
        if isinstance(leaving.__context__, click.exceptions.Abort | KeyboardInterrupt):
            sys.exit(_INTERRUPTED)
        if isinstance(leaving.__context__, OSError):
            _stop_writing(leaving.__context__)
        _flush()
        raise
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except OSError as error:
        if error.filename is not None or error.errno not in _NOWHERE:
            _unforeseen(error)
        _stop_writing(error)
    except Exception as error:  # noqa: BLE001 - the last resort, with a way to see more
        _unforeseen(error)
    _flush()
    sys.exit(0)


def _unforeseen(error: Exception) -> NoReturn:
    if os.environ.get(_TRACEBACK):
        traceback.print_exception(error)
    _fail(f"{_words(error)} This was not foreseen; {_TRACEBACK}=1 shows where it happened.", 2)


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror or error}."
    return f"{type(error).__name__}: {error}."


def _flush() -> None:
    if sys.stdout is None:  # closed before the start
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        _stop_writing(error)


def _stop_writing(error: OSError) -> NoReturn:
    """Leave because the output goes nowhere: silently where nobody reads on, else with the reason."""
    if isinstance(error, BrokenPipeError):
        _leave(_UNREAD)
    _fail(f"the output cannot be written: {error.strerror or error}.", 2)


def _fail(message: str, code: int) -> NoReturn:
    sentence = " ".join(message.split())
    with contextlib.suppress(OSError):
        if _LOG.handlers:
            _LOG.error(sentence, extra={"exit_code": code})
        else:
            typer.echo("error: " + sentence, err=True)
    _leave(code)


def _leave(code: int) -> NoReturn:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # what cannot be written must not end in 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


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
