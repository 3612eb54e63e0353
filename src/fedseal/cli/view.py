"""`view`: runs in a browser, read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import READERS, app
from fedseal.core.errors import InputError


@app.command(rich_help_panel=READERS)
def view(
    directory: Annotated[Path, typer.Argument(help="Directory of a run, or of many.")] = Path("."),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; a free one by default.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Look into runs in the browser: verdicts, trials, films and changes, also while an audit runs.

    The page is read-only and listens on this machine alone, to whoever has the
    address it prints. Ctrl-C ends it.
    """
    import webbrowser

    from fedseal.viewer.server import Viewer

    if not directory.is_dir():
        raise InputError(f"there is no directory {directory}.", hint="Name the --out of an audit, or one above.")
    with Viewer(directory, port) as viewer:
        typer.echo(f"looking at {directory}: {viewer.url}")
        typer.echo("Ctrl-C ends it.", err=True)
        if open_browser:
            webbrowser.open(viewer.url)
        try:
            viewer.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("ended.", err=True)
