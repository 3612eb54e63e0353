"""`list`: what a scenario can name."""

from __future__ import annotations

from typing import Annotated

import typer

from fedseal.cli.app import app


@app.command("list")
def list_entries(
    kind: Annotated[str, typer.Argument(help="attacks, defences, models, data, partitions, labels or metrics.")],
    threat: Annotated[str | None, typer.Option(help="Only those of this threat class: passive or active.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List what can be named in a scenario, with paper, threat class, needs and options."""
    import json
    import warnings

    from rich.console import Console

    from fedseal.report.listing import describe_entries, of_threat, refused_offers, render_listing

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of offers that are refused, which are said below
        entries = describe_entries(kind)
    if threat is not None:
        entries = of_threat(entries, threat)
    for name, reason in refused_offers(kind).items():
        typer.echo(f"fedseal: {name!r} of an installed package is refused: {reason}", err=True)
    if json_output:
        typer.echo(json.dumps(entries, indent=2, default=str))
    else:
        Console().print(render_listing(kind, entries))
