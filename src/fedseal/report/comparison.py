"""A comparison for the terminal: one line per defence, then the readings that changed."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedseal.audit.cells import Standing
from fedseal.audit.comparison import Comparison, RowChange
from fedseal.report.terminal import STYLES
from fedseal.report.words import attacker, change_words, number, plural, printable

_STYLES = {"worse": "bold red", "better": "green", "same": "dim"}


def render_comparison(comparison: Comparison) -> RenderableType:
    """Return a comparison for Rich to print."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading in ("Defence", "Then", "Now", "Since"):
        table.add_column(heading, overflow="fold", max_width=34)
    for row in comparison.rows:
        table.add_row(
            Text(printable(row.defence)),
            _standing(row.before),
            _standing(row.after),
            Text("no change" if row.direction == "same" else row.direction, style=_STYLES[row.direction]),
        )
    parts: list[RenderableType] = [Text(printable(comparison.sentence()), style="bold"), table]
    parts += [line for row in comparison.rows for line in _lines(row)]
    for word, keys in (("new", comparison.new), ("gone", comparison.gone)):
        if keys:
            parts.append(Text(f"{plural(len(keys), 'cell')} {word}: not compared.", style="dim"))
    return Group(*parts)


def _standing(standing: Standing | None) -> Text:
    return Text("not judged" if standing is None else standing.words, style=STYLES[standing])


def _lines(row: RowChange) -> list[Text]:
    lines = [
        Text(
            printable(
                f"{row.defence}, {cell.key[2]}, {attacker(cell.key[3])}: {change.reading.name} {change_words(change)}"
            ),
            style=_STYLES[change.direction],
        )
        for cell, change in row.telling
    ]
    if row.held is not None and abs(row.held) >= 1:
        lines.append(
            Text(printable(f"{row.defence}: the update holds {number(row.held, sign=True)} dB for an ideal reader"))
        )
    return lines
