"""The report for build servers: JUnit XML, one suite per scenario, one case per cell.

A case has one outcome. A level at or above the limit is a failure, which names broken trials too; broken trials are
otherwise an error; a cell that the set-up does not allow is skipped, and so is one that nothing is known of (`not
shown`, `no power`, `too few`): it never passes, and under `strict` it fails. With a limit, a defence that was attacked
without power is an error: nobody may take that for a pass. The control's cells never fail.
"""

from __future__ import annotations

from xml.etree import ElementTree

from fedseal.audit.cells import Cell
from fedseal.audit.levels import STATE_WORDS, RiskLevel, State
from fedseal.audit.run import Run
from fedseal.audit.sentences import DECIDER_WORDS, picked_words
from fedseal.audit.why import reasons
from fedseal.report.commands import cell_command, find_scenario
from fedseal.report.matrix import matrices
from fedseal.report.words import attacker, ideal_words, label_words, number, plural, printable, span
from fedseal.store.records import TrialRecord

_OUTCOMES = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def render_junit(run: Run, fail_on: RiskLevel | None, *, strict: bool = False) -> str:
    """Return JUnit XML; cells fail as `cell_fails` says (none do if `fail_on` is None)."""
    root = ElementTree.Element("testsuites", name="fedseal")
    weak = {(row.scenario, row.defence) for row in run.powerless()} if fail_on is not None else set()
    for matrix in matrices(run.verdict()):
        suite = ElementTree.SubElement(root, "testsuite", name=printable(matrix.scenario))
        if run.started:
            suite.set("timestamp", run.started.removesuffix("+00:00"))  # ISO 8601 without a zone, as the format has it
        _add_properties(suite, run, matrix.scenario)
        for row in matrix.rows:
            for cell in row.cells:
                _add_case(suite, run, cell, fail_on, strict, powerless=(row.scenario, row.defence) in weak)
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_properties(suite: ElementTree.Element, run: Run, scenario: str) -> None:
    """Say when, of which system and on whose account, where the scenario knows."""
    planned = find_scenario(run, scenario)
    about = {} if planned is None else planned.about.model_dump()
    values = {"started": run.started, "ended": run.ended, **about}
    if any(values.values()):
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in values.items():
            if value:
                ElementTree.SubElement(properties, "property", name=name, value=printable(value))


def _add_case(
    suite: ElementTree.Element, run: Run, cell: Cell, fail_on: RiskLevel | None, strict: bool, *, powerless: bool
) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=printable(f"{cell.scenario}.{cell.defence}"),
        name=printable(f"{cell.attack} ({attacker(cell.aware)})"),
        time=f"{sum(record.seconds for record in cell.records):.3f}",
    )
    if fail_on is not None and run.cell_fails(cell, fail_on, strict=strict):
        words = cell.standing.words if cell.standing is not None else "unknown"
        message = f"risk {words}, at or above the limit {fail_on.words}"
        _add(case, "failure", message, _broken(cell.failed), kind="risk")
    elif cell.failed:
        _add(case, "error", f"{plural(len(cell.failed), 'trial')} failed", _broken(cell.failed), kind="trial")
    elif powerless and cell.state in (State.TOO_FEW, State.NO_POWER):
        _add(case, "error", f"no pass without power: {STATE_WORDS[cell.state]}", kind="power")
    elif cell.state is None and cell.refused is not None:
        _add(case, "skipped", cell.refused.message)
    elif cell.state is not None and not cell.state.settled:
        _add(case, "skipped", f"{cell.state.words}: {STATE_WORDS[cell.state]}")
    output = ElementTree.SubElement(case, "system-out")
    failed = [f"why: {found.text} {found.advice}" for found in reasons(cell)]
    output.text = printable("\n".join([*_scores(cell), *failed, f"reproduce: {cell_command(run, cell)}"]))


def _add(case: ElementTree.Element, tag: str, message: str, text: str = "", kind: str = "") -> None:
    outcome = ElementTree.SubElement(case, tag, message=printable(message))
    if kind:
        outcome.set("type", kind)
    if text:
        outcome.text = printable(text)


def _broken(records: tuple[TrialRecord, ...]) -> str:
    return "\n".join(f"target {record.target} failed: {record.message}" for record in records)


def _scores(cell: Cell) -> list[str]:
    if cell.psnr is None or cell.standing is None:
        return []
    return [
        f"risk: {cell.standing.words}" + (f", {DECIDER_WORDS[cell.decided]}" if cell.decided else ""),
        f"{cell.scale.title}: {number(cell.psnr.mean)} {cell.scale.unit} ({span(cell.psnr)}), n = {cell.psnr.n}",
        f"best guess: {cell.baseline}, {number(cell.baseline_psnr)} {cell.scale.unit}",
        f"singled out: {picked_words(cell.picked) or 'too few strangers'}",
        f"labels: {label_words(cell.labels)}",
        f"ideal: {ideal_words(cell.ideal)}",
        f"proven: {cell.proven.sentence() if cell.proven is not None else 'nothing'}",
    ]


def _count(element: ElementTree.Element) -> None:
    cases = list(element.iter("testcase"))
    element.set("tests", str(len(cases)))
    for attribute, tag in _OUTCOMES.items():
        element.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    element.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")
