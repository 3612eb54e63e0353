"""Page one: what somebody who must decide has to know, in words that need no glossary.

What was tested, when, of which system; who could see what; what could be recognised; how sure we are; what to do and
what it costs. Figures in decibels stand in the evidence behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedseal.audit.cells import Cell, Row, best_picked, best_read, row_severity
from fedseal.audit.levels import STATE_WORDS, RiskLevel, State
from fedseal.audit.run import Run
from fedseal.audit.scenario import Scenario
from fedseal.audit.verdict import Verdict
from fedseal.core.defence import DEFENCES
from fedseal.metrics.intervals import FEWEST
from fedseal.report.servers import CURIOUS, MALICIOUS, SERVERS, Finding, Server, findings_of
from fedseal.report.words import RECOGNISED, duration, percentage, plural, size
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
class Advice:
    """What to do.

    Attributes:
        defence: recommended; None where none can be.
        sentence: in words.
        costs: what it costs, as (what, figure).
        steps: what to do next.
    """

    defence: str | None
    sentence: str
    costs: tuple[tuple[str, str], ...]
    steps: tuple[str, ...]


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
    kept = {} if training is None else {one.defence: one for one in training.utilities if one.accuracy is not None}
    exposures = tuple(_exposure(run, verdict, server, kept) for server in SERVERS)
    return Decision(
        _headline(run, verdict),
        _tested(run),
        exposures,
        tuple(_measures(exposures)),
        tuple(_certainty(run, verdict, exposures)),
        _advice(run, verdict, kept, exposures),
    )


def _headline(run: Run, verdict: Verdict) -> str:
    worst = _by_defence(verdict.judged)
    defended = {name: row for name, row in worst.items() if not run.is_control(row)}
    if not worst:
        return "Nothing could be judged."
    if not defended or set(defended) == {"none"}:
        return f"Without a defence, {_bare(next(iter(worst.values())))}."
    low = [name for name, row in defended.items() if row.state is State.LOW]
    leaking = [name for name, row in defended.items() if row.state is State.LEAK]
    if low:
        others = f"; {len(leaking)} of the {len(defended)} defences audited let something through" if leaking else ""
        return f"With {_names(low)}, nothing private was found in what clients send{others}."
    if len(leaking) == len(defended):
        which = f"With {leaking[0]}" if len(leaking) == 1 else f"With every one of the {len(leaking)} defences audited"
        return f"{which}, the server still learns private things from what clients send."
    unknown = [name for name in defended if name not in leaking]
    others = f"; {len(leaking)} of the {len(defended)} defences audited let something through" if leaking else ""
    return f"It is not shown that {_names(unknown)} protects what clients send{others}."


def _bare(row: Row) -> str:
    if row.state is State.LEAK:
        return "the server learns private things from what clients send"
    return (
        "nothing private was found in what clients send" if row.state is State.LOW else "the risk could not be judged"
    )


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _by_defence(rows: Sequence[Row]) -> dict[str, Row]:
    """Return each defence's worst row over all scenarios."""
    worst: dict[str, Row] = {}
    for row in rows:
        worst[row.defence] = max(worst.get(row.defence, row), row, key=row_severity)
    return worst


def _tested(run: Run) -> tuple[tuple[str, str], ...]:
    def said(field: str) -> str:
        return _several([value for scenario in run.scenarios if (value := getattr(scenario.about, field))])

    when = run.ended or run.started
    facts = {
        "System": said("system") or _several([scenario.name for scenario in run.scenarios], ", "),
        "Version": said("version"),
        "Date": when[:10] if when else "",
        "Scope": said("scope") or _several([_scope(scenario) for scenario in run.scenarios]),
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


def _scope(scenario: Scenario) -> str:
    client = scenario.client
    sent = "the gradient of one step" if client.local_steps == 1 else f"the change after {client.local_steps} steps"
    crowd = "" if client.aggregate == 1 else f", summed over {client.aggregate} clients"
    stage = "" if scenario.stage is None else ", later in a training"
    return (
        f"{sent} on {plural(client.batch_size, 'image')} of `{scenario.data}`{crowd}{stage}, with the model "
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
    if not hit:
        return "none beyond chance"
    worst = max(hit, key=lambda one: one.best_psnr)
    level = RiskLevel.LOW if worst.level is None else worst.level
    return f"{RECOGNISED[level]}; {worst.count} of {worst.n} images beyond chance"


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
        names = _names(list(dict.fromkeys(row.defence for row in unknown if row.state is state)))
        said.append(f"Of {names} nothing is known yet: {STATE_WORDS[state]}.")
    if any(row.state is State.LEAK for row in verdict.judged) and not all(
        row.state is State.LOW for row in verdict.judged
    ):
        said.append("Other attacks may find more than those that were tried, never less.")
    problems = [f.topic for found in run.findings.values() for f in found if f.severity == "problem"]
    if problems:
        said.append(f"The set-up has problems that may mislead, see the findings of the doctor: {', '.join(problems)}.")
    if verdict.failed:
        said.append(f"{plural(verdict.failed, 'trial')} failed and count in no average.")
    untested = [one.server.name.lower() for one in exposures if not one.lines]
    if untested and counts:
        said.append(f"Nothing is said about {' or '.join(untested)}: it was not tested.")
    return said


def _advice(run: Run, verdict: Verdict, kept: dict[str, Utility], exposures: Sequence[Exposure]) -> Advice:
    worst = _by_defence(verdict.judged)
    sound = [row for row in worst.values() if row.state is State.LOW]
    steps = _steps(run, verdict, kept, exposures)
    if not sound:
        return Advice(None, _no_advice(run, worst), (), steps)
    best = min(sound, key=lambda row: (-_accuracy(kept, row.defence), _distortion(row), row_severity(row)))
    reason = "no attack got through, and what it sends holds nothing for a better one"
    if best.defence == "none":
        return Advice("none", f"No defence is needed for what was tested: {reason}.", (), steps)
    return Advice(best.defence, f"Use {best.defence}: {reason}.", _costs(verdict, best, kept), steps)


def _no_advice(run: Run, worst: dict[str, Row]) -> str:
    defended = [row for row in worst.values() if not run.is_control(row)]
    if not worst:
        return "Run the audit again: no trial succeeded."
    if not defended or all(row.defence == "none" for row in defended):
        return "Audit defences: without one, updates are as open as shown here."
    if all(row.state is State.LEAK for row in defended):
        return "None of the defences audited can be recommended: each lets something through."
    return "None of the defences audited can be recommended yet: none is shown to hold."


def _steps(run: Run, verdict: Verdict, kept: dict[str, Utility], exposures: Sequence[Exposure]) -> tuple[str, ...]:
    steps = []
    rows = [row for row in verdict.judged if not run.is_control(row)]
    if any(row.state is State.LEAK for row in rows) and not any(row.state is State.LOW for row in rows):
        steps.append("Try stronger settings of the same defences, or others: `fedseal tradeoff` draws both sides.")
    if any(row.state is State.TOO_FEW for row in rows):
        steps.append(f"Attack at least {FEWEST} batches, better 20: set `targets`.")
    if any(row.state is State.NO_POWER for row in rows):
        steps.append("Give the attacks a larger budget, or take `auto`: these broke nothing at all.")
    unsettled = [row for row in rows if row.state is State.NOT_SHOWN]
    read = [row for row in unsettled if row.ideal is not None and row.ideal.gain_db is not None]
    if len(read) < len(unsettled):
        steps.append("Have what updates hold computed (`readings`), or take a defence with a proof.")
    if read:
        named = ", ".join(dict.fromkeys(row.defence for row in read))
        steps.append(
            f"Do not rely on {named} at this strength: updates hold more than a guess there, though no attack tried "
            "here got at it. Take a stronger setting or a defence with a proof."
        )
    noise = _noise(run)
    if noise is not None and any(row.state is not State.LOW for row in rows):
        steps.append(
            f"Noise of standard deviation {noise:.2g} on every entry of an update would take what it holds below the "
            "level of partly recognisable: computed for these updates, not attacked."
        )
    if rows and not kept:
        steps.append(
            "What a defence costs in accuracy is not known here: `fedseal train`, then `fedseal report --training`."
        )
    if any(not one.lines and one.server is MALICIOUS for one in exposures):
        steps.append("If the server need not be trusted to send an honest model, audit active attacks too.")
    if any(not one.lines and one.server is CURIOUS for one in exposures):
        steps.append("Audit a server that only looks, too: it is the likelier one.")
    return tuple(steps)


def _noise(run: Run) -> float | None:
    found = [sigma for r in run.readings for level, sigma in r.sigma_for.items() if level == "10" and sigma is not None]
    return max(found, default=None)


def _distortion(row: Row) -> float:
    """Return how far a defence's updates are from the true ones: where no training says it, the sign of its cost."""
    records = [r for cell in row.cells for r in cell.records]
    values = [value for r in records if isinstance(value := r.cost.get("gradient_distance"), int | float)]
    return sum(values) / len(values) if values else float("inf")


def _accuracy(kept: dict[str, Utility], defence: str) -> float:
    utility = kept.get(defence)
    return -1.0 if utility is None or utility.accuracy is None else utility.accuracy.mean


def _costs(verdict: Verdict, row: Row, kept: dict[str, Utility]) -> tuple[tuple[str, str], ...]:
    def mean(of: Row | None, field: str) -> float | None:
        records = [] if of is None else [r for cell in of.cells for r in cell.records if r.cost]
        values = [value for r in records if isinstance(value := r.cost.get(field), int | float)]
        return sum(values) / len(values) if values else None

    bare = next((one for one in verdict.rows if one.scenario == row.scenario and one.defence == "none"), None)
    costs = []
    sent, before = mean(row, "bytes_up"), mean(bare, "bytes_up")
    if sent is not None:
        costs.append(("Upload of a client per round", size(sent) + (f" instead of {size(before)}" if before else "")))
    seconds = mean(row, "seconds")
    if seconds is not None:
        costs.append(("Time it takes a client per round", duration(seconds)))
    own, plain = kept.get(row.defence), kept.get("none")
    if own is not None and own.accuracy is not None:
        instead = f" instead of {percentage(plain.accuracy.mean)}" if plain is not None and plain.accuracy else ""
        costs.append(("Accuracy of the trained model", f"{percentage(own.accuracy.mean)}{instead}"))
    return tuple(costs)
