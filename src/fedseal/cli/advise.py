"""`advise`: which defence to take, and how strong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fedseal.cli.app import app
from fedseal.cli.options import (
    Address,
    Data,
    DataRoot,
    Device,
    Engine,
    Model,
    Out,
    Rounds,
    Workers,
    chosen_scenario,
    look_here_for_models,
    run_options,
    watching,
)

if TYPE_CHECKING:
    from fedseal.audit.runner import EngineName

_QUESTIONS = {
    "max_accuracy_loss": "How much of the undefended accuracy may be lost?",
    "max_upload": "How much may a client send, in sizes of the plain update?",
    "max_time": "How long may a round take, in undefended ones?",
    "aim": "Which risk is accepted (low, medium, high)?",
}


@app.command()
def advise(
    scenario: Annotated[
        Path | None, typer.Argument(help="Federation (YAML); without one, a preset on embedded digits.")
    ] = None,
    max_accuracy_loss: Annotated[
        str | None, typer.Option(help="Share of the undefended accuracy that may be lost, e.g. 2%.")
    ] = None,
    max_upload: Annotated[
        str | None, typer.Option(help="Bytes a client may send, in those of the plain update, e.g. 0.5x; any.")
    ] = None,
    max_time: Annotated[str | None, typer.Option(help="Time of a round, in an undefended one's, e.g. 2x; any.")] = None,
    aim: Annotated[str | None, typer.Option(help="Highest risk that is accepted: low, medium, high.")] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help="Family to look among, e.g. gaussian or gaussian+topk; repeatable.")
    ] = None,
    data: Data = None,
    model: Model = None,
    rounds: Rounds = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Defences whose cheap readings are taken.")] = None,
    out: Out = Path("fedseal-advice"),
    data_root: DataRoot = None,
    device: Device = "cpu",
    workers: Workers = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """Look for the defence to take: screen many, train and attack only what may be within the limits.

    On a terminal it asks for limits that are not given. Killed or interrupted, the
    same command resumes; with other limits it does only what these need. Ends
    with 1 where nothing is within the limits.
    """
    from rich.console import Console

    from fedseal.advice.advisor import run_advice
    from fedseal.advice.scenario import AdviceScenario
    from fedseal.audit.runner import check_engine
    from fedseal.report.advice import advice_table, write_advice

    limits = {"max_accuracy_loss": max_accuracy_loss, "max_upload": max_upload, "max_time": max_time, "aim": aim}
    options = {
        "defences": defence,
        "data": data,
        "model": model,
        "trials": trials,
        "federation": {"rounds": rounds},
        "limits": limits,
    }
    chosen = chosen_scenario(scenario, AdviceScenario, "advise", options)
    check_engine(engine, address)
    if not any(limits.values()) and sys.stdin.isatty():
        chosen = chosen_scenario(scenario, AdviceScenario, "advise", options | {"limits": _asked(chosen)})
    look_here_for_models()
    with watching() as watcher:
        advice = run_advice(
            chosen,
            out,
            **run_options(data_root, device, workers),
            engine=cast("EngineName", engine),
            address=address,
            watcher=watcher,
        )
    written = write_advice(advice, out)
    Console().print(advice_table(advice))
    typer.echo(advice.paragraph)
    if advice.recommended not in (None, "none"):
        typer.echo(f"put it to work: fedseal apply {out} --to flower|nvflare|ci")
    typer.echo(f"report: {written}")
    if advice.recommended is None:
        raise typer.Exit(1)


def _asked(chosen: object) -> dict[str, str]:
    """Ask for the limits, those of the scenario by default."""
    from fedseal.advice.scenario import AdviceScenario

    assert isinstance(chosen, AdviceScenario)
    limits = chosen.limits
    usual = {
        "max_accuracy_loss": f"{100 * limits.max_accuracy_loss:g}%",
        "max_upload": f"{limits.max_upload:g}x",
        "max_time": f"{limits.max_time:g}x",
        "aim": limits.aim,
    }
    return {name: str(typer.prompt(question, default=usual[name], err=True)) for name, question in _QUESTIONS.items()}
