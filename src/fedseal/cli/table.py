"""`table`: a run of any kind as Markdown, CSV or JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from fedseal.cli.app import READERS, app
from fedseal.cli.options import RunDirectory


class Form(StrEnum):
    """What `--format` takes."""

    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


@app.command(rich_help_panel=READERS)
def table(
    run: RunDirectory,
    overview: Annotated[
        bool,
        typer.Option(
            "--overview", help="Begin with defences against attacks of each scenario: PSNR and SSIM, naive / aware."
        ),
    ] = False,
    form: Annotated[Form, typer.Option("--format", help="What to print.")] = Form.MARKDOWN,
) -> None:
    """Print the results of an audit, a training or a trade-off: Markdown, CSV or JSON."""
    from fedseal.report.tables import run_table

    typer.echo(run_table(run, form.value, overview=overview), nl=False)
