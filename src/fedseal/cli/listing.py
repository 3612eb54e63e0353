"""`list`: what a scenario can name."""

from __future__ import annotations

from typing import Annotated

import typer

from fedseal.cli.app import app


@app.command("list")
def list_entries(
    kind: Annotated[str, typer.Argument(help="attacks, defences, models, data, partitions, labels or metrics.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List what can be named in a scenario, with paper, threat model, needs and options."""
    import json

    from rich.console import Console

    from fedseal.report.listing import describe_entries, render_listing

    entries = describe_entries(kind)
    if json_output:
        typer.echo(json.dumps(entries, indent=2, default=str))
    else:
        Console().print(render_listing(kind, entries))
