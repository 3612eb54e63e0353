"""`why`: what kept the attacks of a run from succeeding, and what to change."""

from __future__ import annotations

from fedseal.cli.app import READERS, app
from fedseal.cli.options import DataRoot, RunDirectory


@app.command(rich_help_panel=READERS)
def why(run: RunDirectory, data_root: DataRoot = None) -> None:
    """Say why attacks of a run failed, and what to change; one target of each is played again."""
    from rich.console import Console

    from fedseal.audit.runner import open_run
    from fedseal.audit.second_look import explained
    from fedseal.report.terminal import render_reasons

    Console().print(render_reasons(explained(open_run(run), data_root=data_root)))
