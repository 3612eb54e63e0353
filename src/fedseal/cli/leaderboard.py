"""`leaderboard`: defences and attacks of kept runs, ranked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedseal.cli.app import READERS, app


@app.command("leaderboard", rich_help_panel=READERS)
def leaderboard_command(
    runs: Annotated[list[Path], typer.Argument(help="Directories of `fedseal advise`, `tradeoff` and `audit`.")],
    to: Annotated[Path | None, typer.Option(help="Directory for leaderboard.md and .html; printed without it.")] = None,
) -> None:
    """Rank defences by their readings at equal utility, attacks by what they find at equal time."""
    from fedseal.report.leaderboard import leaderboard, render_leaderboard, write_leaderboard

    boards = leaderboard(runs)
    if to is None:
        typer.echo(render_leaderboard(boards), nl=False)
        return
    for path in write_leaderboard(boards, to):
        typer.echo(f"wrote {path}")
