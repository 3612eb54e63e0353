"""A run as one small table per scenario: defences down, attacks across, and what was read besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedseal.audit.cells import Cell, Row
from fedseal.audit.run import Run
from fedseal.metrics.intervals import Interval
from fedseal.metrics.utility import pmm
from fedseal.report import words
from fedseal.report.markdown import escaped
from fedseal.report.matrix import Matrix, matrices
from fedseal.training.run import TrainingRun, Utility

KEY = (
    "In each cell of an audit: the mean score with its 95 % interval over n updates, then how many originals\n"
    "are first among the strangers of a line-up."
)

_SEVERAL = 2

TRAINING_KEY = (
    "In each row of a training: accuracy in per cent after the last round, and PMM, 100 times the accuracy over the\n"
    "undefended twin's, which has the same data, weights and batches: means over seeds with their 95 % intervals\n"
    "(fewer than four have none, and by bootstrap-t one of four is wide on the side of a seed that lies apart), then\n"
    "each seed's. Then the bytes of one upload and the seconds of a round, beside other jobs."
)


def render_compact(run: Run) -> str:
    """Return the tables; a heading before each where there are several."""
    found = matrices(run.verdict())
    return "\n".join(
        (f"## {escaped(one.scenario)}\n\n" if len(found) >= _SEVERAL else "") + _table(one) for one in found
    )


def render_training(run: TrainingRun) -> str:
    """Return a training's setting, its table, and what the first client's defence says of itself."""
    lines = [_setting(run), "", _line(["defence", "accuracy", "PMM", "upload", "s per round"]), "|---" * 5 + "|"]
    for one in run.utilities:
        upload, seconds = words.size(one.bytes_up), words.significant(one.seconds)
        lines.append(_line([f"`{one.defence}`", _accuracy(one), _kept(run, one), upload, seconds]))
    told = [
        f"- `{one.defence}`, seed {run.scenario.seeds[0]}: {said}."
        for one in run.utilities
        for said in one.remarks
        if said.startswith("client-0") or not said.startswith("client-")
    ]
    return "\n".join([*lines, *(["", *told] if told else [])])


def render_outcomes(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """Return what `fedseal infer --json` answered: a row for each defence, a column for each score."""
    scores = list(dict.fromkeys(one["score"] for one in outcomes))
    found = {(one["defence"], one["score"]): one for one in outcomes}
    lines = [_line(["defence", *scores]), "|---" * (len(scores) + 1) + "|"]
    for defence in dict.fromkeys(one["defence"] for one in outcomes):
        lines.append(_line([f"`{defence}`", *(_told(found.get((defence, score))) for score in scores)]))
    return "\n".join(lines)


def _told(outcome: Mapping[str, Any] | None) -> str:
    """Return an area under the curve and the share found at few false alarms, with their intervals."""
    if outcome is None:
        return ""
    told = ["{auc:.2f} [{auc_low:.2f}, {auc_high:.2f}]".format(**outcome)]
    for rate in outcome["rates"][:1]:
        found, low, high = (100 * rate[name] for name in ("found", "low", "high"))
        told.append(f"{found:.0f} % [{low:.0f}, {high:.0f}]")
    return ", ".join(told)


def _setting(run: TrainingRun) -> str:
    scenario, federation = run.scenario, run.scenario.federation
    steps = "one gradient" if federation.algorithm == "fedsgd" else f"{federation.local_steps} local steps"
    rates = {"client momentum": federation.momentum, "server momentum": federation.server_momentum}
    moments = "".join(f", {name} {value:g}" for name, value in rates.items() if value)
    return (
        f"`{scenario.model}`, {run.environment['training images']} images of `{scenario.data}` "
        f"({run.test_images} more for testing), {scenario.clients} clients, `{scenario.partition}`; "
        f"{federation.rounds} rounds of {steps}, batches of {federation.batch_size}, {federation.optimiser}, rate "
        f"{federation.learning_rate:g}{moments}. Chance: {run.chance:.0%}."
    )


def _accuracy(one: Utility) -> str:
    if one.accuracy is None:
        return f"not trained: {one.refused}"
    ends = [100 * training.history.accuracy for training in one.trainings if training.history is not None]
    return _of_seeds(one.accuracy, ends, 100) + ("" if one.learnt else " (chance)")


def _kept(run: TrainingRun, one: Utility) -> str:
    if one.pmm is None:
        return words.ABSENT
    twins = {training.seed: training.history for training in run.utilities[0].trainings}
    pairs = [(training.history, twins.get(training.seed)) for training in one.trainings]
    ends = [pmm(own.accuracy, twin.accuracy) for own, twin in pairs if own is not None and twin is not None]
    return _of_seeds(one.pmm, ends, 1)


def _of_seeds(mean: Interval, each: list[float], unit: float) -> str:
    """Return a mean in per cent with its interval, if it has one, and the percentages it is the mean of."""
    interval = "" if mean.low is None or mean.high is None else f" [{unit * mean.low:.1f}, {unit * mean.high:.1f}]"
    return f"{unit * mean.mean:.1f}{interval} ({', '.join(f'{one:.1f}' for one in each)})"


def _table(matrix: Matrix) -> str:
    columns = [(attack, aware) for attack in matrix.attacks for aware in _attackers(matrix, attack)]
    several = {attack for attack, aware in columns if (attack, not aware) in columns}
    titles = [f"`{attack}`" + (f", {words.attacker(aware)}" if attack in several else "") for attack, aware in columns]
    others = {"labels": _labels, "ideal": lambda row: words.ideal_words(row.ideal)}
    absent = {"given", "not computed", "cannot be computed"}
    others = {name: told for name, told in others.items() if {told(row) for row in matrix.rows} - absent}
    lines = [_line(["defence", *titles, *others, "n", "verdict"]), "|---" * (len(titles) + len(others) + 3) + "|"]
    for row in matrix.rows:
        cells = {(cell.attack, cell.aware): cell for cell in row.cells}
        counts = sorted({len(cell.succeeded) for cell in row.cells if cell.succeeded})
        told = [_cell(cells.get(column)) for column in columns] + [told(row) for told in others.values()]
        lines.append(_line([f"`{row.defence}`", *told, ", ".join(map(str, counts)), _verdict(row)]))
    refused = {(row.defence, cell.refused.message) for row in matrix.rows for cell in row.cells if cell.refused}
    told = [f"- `{who}` is refused: {why}" for who, why in sorted(refused)]
    return "\n".join([*lines, *(["", *told] if told else [])]) + "\n"


def _attackers(matrix: Matrix, attack: str) -> list[bool]:
    return sorted({cell.aware for row in matrix.rows for cell in row.cells if cell.attack == attack})


def _cell(cell: Cell | None) -> str:
    """Return a mean with its interval and how many originals are first among strangers."""
    if cell is None:
        return ""
    if cell.psnr is None:
        return "refused" if cell.refused else f"{len(cell.failed)} failed"
    first = "" if cell.picked is None else f"; {cell.picked.count} of {cell.picked.n}"
    failed = f"; {len(cell.failed)} failed" if cell.failed else ""
    return f"{_interval(cell.psnr)}{first}{failed}"


def _interval(interval: Interval) -> str:
    mean = words.number(interval.mean)
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} [{words.number(interval.low)}, {words.number(interval.high)}]"


def _labels(row: Row) -> str:
    return words.label_words(row.labels)


def _verdict(row: Row) -> str:
    decided = row.worst.decided if row.worst is not None else None
    return words.risk(row.standing) + (f" ({decided})" if decided else "")


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"
