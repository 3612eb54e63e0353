"""The report for the terminal: the verdict, a table of defences and attacks, and what guessing gives; 80 columns."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedseal.audit.run import Run
from fedseal.audit.verdict import Cell, RiskLevel
from fedseal.report.charts import baseline_name
from fedseal.report.matrix import Matrix, Square, matrices, worst_cell
from fedseal.report.words import decibel, half_width, number, plural, printable

ATTACKS_PER_TABLE = 3
"""Columns that fit beside the defences in 80 characters; more attacks take more tables."""

STYLES: dict[RiskLevel | None, str] = {
    RiskLevel.LOW: "green",
    RiskLevel.MEDIUM: "yellow",
    RiskLevel.HIGH: "dark_orange",
    RiskLevel.VERY_HIGH: "bold red",
    None: "dim",
}


def render_terminal(run: Run) -> RenderableType:
    """Return a compact summary of a run for Rich to print."""
    verdict = run.verdict()
    parts: list[RenderableType] = [Text(printable(verdict.sentence()), style="bold")]
    if len(run.records) < run.planned:
        ended = f"Not complete: {len(run.records)} of {plural(run.planned, 'planned trial')} have ended."
        parts.append(Text(ended, style="yellow"))
    found = matrices(verdict)
    for matrix in found:
        if len(found) > 1:
            parts.append(Text(f"\nScenario {printable(matrix.scenario)}", style="bold"))
        for start in range(0, len(matrix.attacks), ATTACKS_PER_TABLE):
            parts.append(_table(matrix, matrix.attacks[start : start + ATTACKS_PER_TABLE]))
        parts.extend(_remarks(matrix))
    return Group(*parts)


def _table(matrix: Matrix, attacks: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_lines=False)
    table.add_column("Defence", overflow="fold", max_width=22)
    for attack in attacks:
        table.add_column(Text(printable(attack)), overflow="fold", min_width=16, max_width=18)
    for row in matrix.rows:
        squares = [_square(matrix.square(row, attack)) for attack in attacks]
        table.add_row(Text(printable(row.defence)), *squares)
    return table


def _square(square: Square) -> Text:
    if square.worst is None:
        if square.failed:
            return Text(f"{len(square.failed)} failed", style="red")
        return Text("not applicable" if square.refusals else "not run", style="dim")
    lines = [_line(cell) for cell in square.cells]
    level = square.worst.level
    lines.append(Text(level.words if level is not None else "not judged", style=STYLES[level]))
    if square.failed:
        lines.append(Text(f"{len(square.failed)} failed", style="red"))
    return Text("\n").join(lines)


def _line(cell: Cell) -> Text:
    kind = "aware" if cell.aware else "naive"
    if cell.psnr is None:
        return Text(f"{kind} {'failed' if cell.failed else 'n/a'}", style="dim")
    return Text(f"{kind} {decibel(cell.psnr.mean)}{half_width(cell.psnr)}", style=STYLES[cell.level])


def _remarks(matrix: Matrix) -> list[Text]:
    remarks = []
    worst = worst_cell(cell for row in matrix.rows for cell in row.cells)
    if worst is not None and worst.baseline is not None:
        guess = f"{printable(baseline_name(worst.baseline))}, {number(worst.baseline_psnr)} dB"
        remarks.append(Text(f"Mean PSNR in dB ± half of its 95 % interval. Best guess without the update: {guess}."))
    for square in matrix.squares:
        for record in square.refusals:
            remarks.append(_remark(square, f"not applicable: {record.message}"))
        if square.failed:
            remarks.append(_remark(square, f"{plural(len(square.failed), 'trial')} failed: {square.failed[0].message}"))
    return remarks


def _remark(square: Square, text: str) -> Text:
    return Text(printable(f"{square.attack} on {square.defence}, {text}"), style="dim")
