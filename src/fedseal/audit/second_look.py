"""A run's failed attacks looked at again: one target of each is played anew, with the truth beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedseal.audit.cells import Cell
from fedseal.audit.run import Run
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, build_setup
from fedseal.audit.symptoms import symptoms_of
from fedseal.audit.why import causes, has_failed, reasons
from fedseal.core.errors import FedsealError
from fedseal.core.modality import IMAGE
from fedseal.defences.pipeline import build_defence
from fedseal.store.findings import Finding


def explained(run: Run, *, data_root: Path | None = None) -> Iterator[tuple[Cell, tuple[Finding, ...]]]:
    """Yield the cells of a run that failed, each with why, as far as that can be told.

    What records tell is told of all. Of those on an undefended client, a target is played again too, which takes a
    gradient or the client's local steps.

    Args:
        run: finished or not.
        data_root: where local data sets lie.
    """
    scenarios = {scenario.name: scenario for scenario in run.scenarios}
    setups: dict[str, Setup | str] = {}
    for cell in run.verdict().cells:
        if not has_failed(cell):
            continue
        found, scenario = reasons(cell), scenarios.get(cell.scenario)
        if scenario is not None and cell.defence == "none" and can_be_played(scenario):
            if scenario.name not in setups:
                setups[scenario.name] = _setup(scenario, data_root)
            found = (*found, *_measured(run, cell, setups[scenario.name]))
        yield cell, found


def can_be_played(scenario: Scenario) -> bool:
    """Return whether one client's first round is behind an update, which is soon played again."""
    return scenario.stage is None and scenario.client.aggregate == 1


def _setup(scenario: Scenario, data_root: Path | None) -> Setup | str:
    try:
        return build_setup(scenario.by_weights()[0], data_root=data_root)
    except FedsealError as error:
        return str(error)


def _measured(run: Run, cell: Cell, setup: Setup | str) -> tuple[Finding, ...]:
    if isinstance(setup, str):
        unplayed = "no target can be played again, so that only records are read"
        return (Finding(severity="note", topic="replay", text=f"{unplayed}: {setup}"),)
    record = cell.succeeded[0]
    target = setup.observe(build_defence("none"), record.target, name="none")
    pictures = run.images(record) if target.originals.modality == IMAGE else None
    found = None if pictures is None else pictures[1]
    return causes(symptoms_of(target.observation, target.config, target.originals, found), cell.attack)
