"""Page one: what somebody who must decide has to know, in words that need no glossary.

What was tested, when, of which system; who could see what; what could be recognised; how sure we are; what to do and
what it costs. Figures in decibels stand in the evidence behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedseal.audit.cells import Cell, Row, best_picked, best_read
from fedseal.audit.levels import STATE_WORDS, RiskLevel, State
from fedseal.audit.nearness import row_findings
from fedseal.audit.run import Run
from fedseal.audit.scenario import Scenario
from fedseal.audit.verdict import Verdict
from fedseal.core.defence import DEFENCES
from fedseal.metrics.scales import PSNR, scale_called
from fedseal.report.recommendation import Advice, advise, kept_by, listed, worst_rows
from fedseal.report.servers import SERVERS, Finding, Server, findings_of
from fedseal.report.words import RECOGNISED, percentage, plural
from fedseal.training.run import TrainingRun, Utility

ROWS_SHOWN = 6
"""Defences shown of each kind of server on page one."""

_PLAINER = {"tensor by tensor": "layer by layer", "tensor": "layer", "coordinate": "number", "entries": "numbers"}
_UNKNOWN = {State.NOT_SHOWN, State.NO_POWER, State.TOO_FEW}


@dataclass(frozen=True)
class Line:
    """What one kind of server got under one defence.

    Attributes:
        defence: its spec; the control is marked.
        control: whether it is the control.
        finding: with the cell that decides, for its badge.
        images, persons, labels, victim: what was recognised, in words.
        accuracy: that a training kept, where one exists.
    """

    defence: str
    control: bool
    finding: Finding
    images: str
    persons: str
    labels: str
    victim: str
    accuracy: str | None


@dataclass(frozen=True)
class Exposure:
    """What one kind of server could see; without lines it was not tested."""

    server: Server
    lines: tuple[Line, ...]
    hidden: int


@dataclass(frozen=True)
class Decision:
    """Page one of a report.

    Attributes:
        headline: the verdict in a sentence.
        tested: what, when, by whom, as (field, value).
        exposures: who could see what.
        measures: the defences shown, as (spec, what it does).
        certainty: how sure we are, in sentences.
        advice: what to do.
    """

    headline: str
    tested: tuple[tuple[str, str], ...]
    exposures: tuple[Exposure, ...]
    measures: tuple[tuple[str, str], ...]
    certainty: tuple[str, ...]
    advice: Advice


def decide(run: Run, verdict: Verdict, training: TrainingRun | None = None) -> Decision:
    """Return page one of a run; `training` adds what each defence leaves of the model's accuracy."""
    kept = kept_by(training)
    exposures = tuple(_exposure(run, verdict, server, kept) for server in SERVERS)
    return Decision(
        _headline(run, verdict, kept),
        _tested(run),
        exposures,
        tuple(_measures(exposures)),
        tuple(_certainty(run, verdict, exposures)),
        advise(run, verdict, training, [one.server for one in exposures if not one.lines]),
    )


def _headline(run: Run, verdict: Verdict, kept: Mapping[str, Utility]) -> str:
    worst = worst_rows(verdict.judged)
    defended = {name: row for name, row in worst.items() if not run.is_control(row)}
    if not worst:
        return "Nothing could be judged."
    if not defended or set(defended) == {"none"}:
        return f"Without a defence, {_bare(next(iter(worst.values())))}."
    low = [name for name, row in defended.items() if row.state is State.LOW]
    leaking = [name for name, row in defended.items() if row.state is State.LEAK]
    if low:
        others = f"; {len(leaking)} of the {len(defended)} defences audited let something through" if leaking else ""
        idle = all(name in kept and not kept[name].learnt for name in low)
        and_so = ", and the federation learns nothing" if idle else ""
        return f"With {listed(low)}, nothing private was found in what clients send{and_so}{others}."
    if len(leaking) == len(defended):
        which = f"With {leaking[0]}" if len(leaking) == 1 else f"With every one of the {len(leaking)} defences audited"
        return f"{which}, the server still learns private things from what clients send."
    unknown = [name for name in defended if name not in leaking]
    others = f"; {len(leaking)} of the {len(defended)} defences audited let something through" if leaking else ""
    return f"It is not shown that {listed(unknown)} protects what clients send{others}."


def _bare(row: Row) -> str:
    if row.state is State.LEAK:
        return "the server learns private things from what clients send"
    return (
        "nothing private was found in what clients send" if row.state is State.LOW else "the risk could not be judged"
    )


def _tested(run: Run) -> tuple[tuple[str, str], ...]:
    def said(field: str) -> str:
        return _several([value for scenario in run.scenarios if (value := getattr(scenario.about, field))])

    when, noun = run.ended or run.started, scale_called(run.scale).noun
    facts = {
        "System": said("system") or _several([scenario.name for scenario in run.scenarios], ", "),
        "Version": said("version"),
        "Date": when[:10] if when else "",
        "Scope": said("scope") or _several([_scope(scenario, noun) for scenario in run.scenarios]),
        "Responsible": said("responsible"),
        "Signed off": said("sign_off"),
    }
    missing = {"Version", "Date", "Responsible", "Signed off"}
    return tuple((name, value or "not stated") for name, value in facts.items() if value or name in missing)


def _several(texts: Sequence[str], between: str = "; ") -> str:
    """Return distinct texts in a row, the first three of many."""
    distinct = list(dict.fromkeys(texts))
    more = f"{between}and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return between.join(distinct[:3]) + more


def _scope(scenario: Scenario, noun: str) -> str:
    client = scenario.client
    steps = client.local_steps * client.local_epochs
    sent = "the gradient of one step" if steps == 1 else f"the change after {steps} steps"
    if steps > 1 and not client.rule.is_plain:
        sent = f"{sent} of {client.rule.describe()}"
    crowd = "" if client.aggregate == 1 else f", summed over {client.aggregate} clients"
    stage = "" if scenario.stage is None else ", later in a training"
    return (
        f"{sent} on {plural(client.batch_size, noun)} of `{scenario.data}`{crowd}{stage}, with the model "
        f"`{scenario.model}`"
    )


def _exposure(run: Run, verdict: Verdict, server: Server, kept: dict[str, Utility]) -> Exposure:
    found = list(findings_of(server, verdict.rows))
    shown = found if len(found) <= ROWS_SHOWN else _most_telling(run, found)
    return Exposure(server, tuple(_line(run, one, kept) for one in shown), len(found) - len(shown))


def _measures(exposures: Sequence[Exposure]) -> Iterator[tuple[str, str]]:
    """Yield what the defences in the lines do, each once; those of packages that are not installed are left out."""
    for defence in dict.fromkeys(line.defence for one in exposures for line in one.lines if line.defence != "none"):
        names = [re.split("[:?]", part)[0] for part in defence.split("+")]
        if all(name in DEFENCES for name in names):
            words = ", then ".join(DEFENCES.entry(name).info.summary for name in names)
            for technical, plain in _PLAINER.items():
                words = words.replace(technical, plain)
            yield defence, words


def _most_telling(run: Run, found: Sequence[Finding]) -> list[Finding]:
    """Return the controls, then the best and the worst of the rest, in their own order."""
    controls = [one for one in found if run.is_control(one.row)][:1]
    rest = sorted((one for one in found if one not in controls), key=lambda one: one.worst.severity)
    left = ROWS_SHOWN - len(controls)
    chosen = [*controls, *rest[: left // 2], *rest[len(rest) - (left - left // 2) :]]
    return [one for one in found if one in chosen]


def _line(run: Run, finding: Finding, kept: dict[str, Utility]) -> Line:
    utility = kept.get(finding.row.defence)
    accuracy = None if utility is None or utility.accuracy is None else percentage(utility.accuracy.mean)
    if accuracy is not None and utility is not None and not utility.learnt:
        accuracy += " (chance)"
    return Line(
        finding.row.defence,
        run.is_control(finding.row),
        finding,
        _images(finding.cells),
        _persons(finding.cells),
        _labels(finding.cells),
        _victim(finding.cells),
        accuracy,
    )


def _images(cells: Sequence[Cell]) -> str:
    levels = [level for cell in cells for decider, level in cell.leaks if decider == "found"]
    if levels:
        return RECOGNISED[max(levels)]
    few = any(cell.state is State.TOO_FEW for cell in cells)
    return "too few to tell" if few else "not recognised by the attacks tried"


def _persons(cells: Sequence[Cell]) -> str:
    best = best_picked(cells)
    if best is None:
        return "not tested: too few strangers"
    counted = f"{best.count} of {best.n} picked out of {best.size}"
    return counted if best.significant else f"not shown to beat chance ({counted})"


def _labels(cells: Sequence[Cell]) -> str:
    best = best_read(cells)
    if best is None:
        return "not tested: the attacker was given them"
    figures = f"{percentage(best.accuracy.mean)} read, a guess {percentage(best.chance)}"
    if best.accuracy.low is None:
        return f"too few to tell ({figures})"
    return figures if best.leaked else f"not shown to beat a guess ({figures})"


def _victim(cells: Sequence[Cell]) -> str:
    hit = [cell.victims for cell in cells if cell.victims is not None and cell.victims.level is not None]
    noun = next((cell.scale.noun for cell in cells if cell.succeeded), PSNR.noun)
    if not hit:
        return "none beyond chance"
    worst = max(hit, key=lambda one: one.best_psnr)
    level = RiskLevel.LOW if worst.level is None else worst.level
    return f"{RECOGNISED[level]}; {worst.count} of {worst.n} {noun}s beyond chance"


def _certainty(run: Run, verdict: Verdict, exposures: Sequence[Exposure]) -> list[str]:
    counts = [len(cell.succeeded) for cell in verdict.cells if cell.succeeded]
    said = []
    if len(run.records) < run.planned:
        said.append(f"The audit is not complete: {len(run.records)} of {run.planned} trials have ended.")
    if counts:
        fewest, most = min(counts), max(counts)
        n = plural(fewest, "batch") if fewest == most else f"{fewest} to {most} batches"
        missed = 1 - 0.05 ** (1 / fewest)
        said.append(
            f"{n.replace('batchs', 'batches')} of private data were attacked under each defence. What is called more "
            f"than chance is so with 95 % confidence. A leak that strikes fewer than {percentage(missed)} of batches "
            "may have been missed."
        )
    unknown = [row for row in verdict.judged if row.state in _UNKNOWN and not run.is_control(row)]
    for state in dict.fromkeys(row.state for row in unknown if row.state is not None):
        names = listed(list(dict.fromkeys(row.defence for row in unknown if row.state is state)))
        said.append(f"Of {names} nothing is known yet: {STATE_WORDS[state]}.")
    if any(row.state is State.LEAK for row in verdict.judged) and not all(
        row.state is State.LOW for row in verdict.judged
    ):
        said.append("Other attacks may find more than those that were tried, never less.")
    rows = [row for row in verdict.judged if not run.is_control(row)]
    said.extend(dict.fromkeys(found.text for row in rows for found in row_findings(row)))
    problems = [f.topic for found in run.findings.values() for f in found if f.severity == "problem"]
    if problems:
        said.append(f"The set-up has problems that may mislead, see the findings of the doctor: {', '.join(problems)}.")
    if verdict.failed:
        said.append(f"{plural(verdict.failed, 'trial')} failed and count in no average.")
    untested = [one.server.name.lower() for one in exposures if not one.lines]
    if untested and counts:
        said.append(f"Nothing is said about {' or '.join(untested)}: it was not tested.")
    return said
