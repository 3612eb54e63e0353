"""The commands that reproduce a run's cells."""

from __future__ import annotations

import shlex

from fedseal.audit.cells import Cell
from fedseal.audit.run import Run
from fedseal.audit.scenario import Scenario


def scenario_file(name: str) -> str:
    """Return the file name under which the report tells its reader to save a scenario."""
    return f"{name}.yaml"


def find_scenario(run: Run, name: str) -> Scenario | None:
    """Return the planned scenario of that name."""
    return next((scenario for scenario in run.scenarios if scenario.name == name), None)


def cell_command(run: Run, cell: Cell) -> str:
    """Return the shell command that runs a cell again, for both kinds of attacker the scenario asks for."""
    words = [
        "fedseal",
        "audit",
        scenario_file(cell.scenario),
        "--defence",
        cell.defence,
        "--attack",
        cell.attack,
    ]
    scenario = find_scenario(run, cell.scenario)
    if scenario is not None:
        words += ["--seed", str(scenario.seed)]
    return shlex.join(words)
