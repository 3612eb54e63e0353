"""`apply`: what a run recommends, as lines that a federation or a build takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import READERS, app
from fedseal.cli.options import RunDirectory


@app.command("apply", rich_help_panel=READERS)
def apply_command(
    run: RunDirectory,
    to: Annotated[str, typer.Option("--to", help="flower, nvflare, or ci for a scenario that a build audits.")],
    defence: Annotated[str | None, typer.Option(help="One of the audited; the recommended one by default.")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File to write; printed without it.")] = None,
) -> None:
    """Print what puts a run's recommendation to work, or write it into a file.

    A defence that is not shown to protect is never taken unasked; asked for by
    name, it carries its standing in the first line.
    """
    from fedseal.core.errors import UsageError
    from fedseal.core.files import write_atomically
    from fedseal.report.pieces import piece_of

    text = piece_of(run, to, defence)
    if out is None:
        typer.echo(text, nl=False)
        return
    if out.exists():
        raise UsageError(f"{out} is there already.", hint="Name another file, or remove it.")
    write_atomically(out, text)
    typer.echo(f"wrote {out}")
