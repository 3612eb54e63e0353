"""The report for the terminal: the verdict, a table of defences and attacks, and what guessing gives; 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedseal.audit.cells import Cell, Row, Standing
from fedseal.audit.levels import RiskLevel, State
from fedseal.audit.nearness import row_findings
from fedseal.audit.run import Run
from fedseal.audit.sentences import picked_words
from fedseal.audit.why import reasons
from fedseal.metrics.scales import PSNR
from fedseal.report.charts import baseline_name
from fedseal.report.matrix import Matrix, Square, matrices, worst_cell
from fedseal.report.words import decibel, half_width, ideal_words, label_words, number, plural, printable
from fedseal.store.findings import Finding

ATTACKS_PER_TABLE = 3
"""Columns that fit beside the defences in 80 characters; more attacks take more tables."""

STYLES: dict[Standing | None, str] = {
    RiskLevel.LOW: "green",
    RiskLevel.MEDIUM: "yellow",
    RiskLevel.HIGH: "dark_orange",
    RiskLevel.VERY_HIGH: "bold red",
    State.NOT_SHOWN: "magenta",
    State.NO_POWER: "blue",
    State.TOO_FEW: "cyan",
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
    worst = square.worst
    words = worst.standing.words if worst.standing is not None else "not judged"
    lines.append(Text(words + (f", {worst.decided}" if worst.decided else ""), style=STYLES[worst.standing]))
    if square.failed:
        lines.append(Text(f"{len(square.failed)} failed", style="red"))
    return Text("\n").join(lines)


def _line(cell: Cell) -> Text:
    kind = "aware" if cell.aware else "naive"
    if cell.psnr is None:
        return Text(f"{kind} {'failed' if cell.failed else 'n/a'}", style="dim")
    figure = decibel(cell.psnr.mean) if cell.scale is PSNR else number(cell.psnr.mean)
    return Text(f"{kind} {figure}{half_width(cell.psnr)}", style=STYLES[cell.standing])


def _remarks(matrix: Matrix) -> list[Text]:
    remarks = []
    worst = worst_cell(cell for row in matrix.rows for cell in row.cells)
    if worst is not None and worst.baseline is not None:
        scale = worst.scale
        guess = f"{printable(baseline_name(worst.baseline, scale.noun))}, {number(worst.baseline_psnr)} {scale.unit}"
        said = f"Mean {scale.title} in {scale.unit} ± half of its 95 % interval. Best attainable guess: {guess}."
        remarks.append(Text(said))
    for row in matrix.rows:
        remarks.extend(_readings(row))
        remarks.extend(Text(printable(f"{one.text} {one.advice}"), style="yellow") for one in row_findings(row))
    for square in matrix.squares:
        for record in square.refusals:
            remarks.append(_remark(square, f"not applicable: {record.message}"))
        for finding in (finding for cell in square.cells for finding in reasons(cell)):
            remarks.append(_remark(square, f"why: {finding.text} {finding.advice}"))
        if square.failed:
            remarks.append(_remark(square, f"{plural(len(square.failed), 'trial')} failed: {square.failed[0].message}"))
    return remarks


def render_reasons(explained: Iterable[tuple[Cell, tuple[Finding, ...]]]) -> Group:
    """Return why cells failed, each with what to do; a sentence if none did."""
    parts: list[Text] = []
    for cell, findings in explained:
        attacker = "aware" if cell.aware else "naive"
        parts.append(Text(printable(f"{cell.scenario}: {cell.attack} on {cell.defence}, {attacker}"), style="bold"))
        for found in findings:
            style = {"problem": "red", "warning": "yellow"}.get(found.severity, "")
            parts.append(Text(printable(f"  {found.topic}: {found.text}"), style=style))
            if found.advice:
                parts.append(Text(printable(f"    {found.advice}")))
        if not findings:
            parts.append(Text("  no cause that we know of: steps, rates, statistics, rank and search are in order."))
    nothing = "Nothing to explain: no attack failed on an undefended client, or did far worse than a guess."
    return Group(*parts or [Text(nothing)])


def _readings(row: Row) -> list[Text]:
    """Return the other readings of a defence, in a line: line-ups, labels, what the update holds, what is proven."""
    cell = row.worst
    if cell is None:
        return []
    parts = [picked_words(row.picked)] if row.picked is not None else []
    if row.labels is not None:
        parts.append(f"labels {label_words(row.labels)}")
    if cell.victims is not None and cell.victims.count:
        parts.append(f"{cell.victims.count} of {cell.victims.n} {cell.scale.noun}s beyond chance")
    parts.append(f"ideal {ideal_words(row.ideal)}")
    if row.proven is not None:
        parts.append(row.proven.sentence().rstrip("."))
    if cell.attack_failed:
        parts.append("the attack did far worse than a guess: it failed")
    return [Text(printable(f"{row.defence}: {'; '.join(parts)}."), style=STYLES[row.standing])]


def _remark(square: Square, text: str) -> Text:
    return Text(printable(f"{square.attack} on {square.defence}, {text}"), style="dim")
