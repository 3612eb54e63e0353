"""A run as one small table per scenario: defences down, attacks across, and what was read besides."""

from __future__ import annotations

from collections.abc import Iterable

from fedseal.audit.cells import Cell, Row
from fedseal.audit.run import Run
from fedseal.metrics.intervals import Interval
from fedseal.report import words
from fedseal.report.markdown import escaped
from fedseal.report.matrix import Matrix, matrices

KEY = (
    "In each cell of an audit: the mean score with its 95 % interval over n updates, then how many originals\n"
    "are first among the strangers of a line-up."
)

_SEVERAL = 2


def render_compact(run: Run) -> str:
    """Return the tables; a heading before each where there are several."""
    found = matrices(run.verdict())
    return "\n".join(
        (f"### {escaped(one.scenario)}\n\n" if len(found) >= _SEVERAL else "") + _table(one) for one in found
    )


def _table(matrix: Matrix) -> str:
    columns = [(attack, aware) for attack in matrix.attacks for aware in _attackers(matrix, attack)]
    several = {attack for attack, aware in columns if (attack, not aware) in columns}
    titles = [f"`{attack}`" + (f", {words.attacker(aware)}" if attack in several else "") for attack, aware in columns]
    others = {"labels": _labels, "ideal": lambda row: words.ideal_words(row.ideal)}
    absent = {"given", "not computed"}
    others = {name: told for name, told in others.items() if {told(row) for row in matrix.rows} - absent}
    lines = [_line(["defence", *titles, *others, "n", "verdict"]), "|---" * (len(titles) + len(others) + 3) + "|"]
    for row in matrix.rows:
        cells = {(cell.attack, cell.aware): cell for cell in row.cells}
        counts = sorted({len(cell.succeeded) for cell in row.cells if cell.succeeded})
        told = [_cell(cells.get(column)) for column in columns] + [told(row) for told in others.values()]
        lines.append(_line([f"`{row.defence}`", *told, ", ".join(map(str, counts)), _verdict(row)]))
    return "\n".join(lines) + "\n"


def _attackers(matrix: Matrix, attack: str) -> list[bool]:
    return sorted({cell.aware for row in matrix.rows for cell in row.cells if cell.attack == attack})


def _cell(cell: Cell | None) -> str:
    """Return a mean with its interval and how many originals are first among strangers."""
    if cell is None:
        return ""
    if cell.psnr is None:
        return f"refused: {cell.refused.message}" if cell.refused else f"{len(cell.failed)} failed"
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
