"""The matrix of a scenario: defences down, attacks across, both kinds of attacker in each square."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedseal.audit.cells import Cell, Row, Standing, best_picked, best_read
from fedseal.audit.evidence import Labels
from fedseal.audit.verdict import Verdict
from fedseal.metrics.picked import Picked
from fedseal.store.records import TrialRecord


@dataclass(frozen=True)
class Square:
    """One attack on one defence, by a naive and by a defence-aware attacker.

    Attributes:
        scenario, defence, attack: which square.
        naive, aware: its cells; None where that kind of attacker was not planned or has not run.
    """

    scenario: str
    defence: str
    attack: str
    naive: Cell | None = None
    aware: Cell | None = None

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells there are, naive first."""
        return tuple(cell for cell in (self.naive, self.aware) if cell is not None)

    @property
    def worst(self) -> Cell | None:
        """The cell that decides the square's level; None if nothing succeeded."""
        return worst_cell(self.cells)

    @property
    def standing(self) -> Standing | None:
        """The level of the worst cell, or the state that has none."""
        return self.worst.standing if self.worst else None

    @property
    def picked(self) -> Picked | None:
        """The better line-up of its attackers."""
        return best_picked(self.cells)

    @property
    def labels(self) -> Labels | None:
        """The better reading of labels of its attackers."""
        return best_read(self.cells)

    @property
    def refusals(self) -> tuple[TrialRecord, ...]:
        """One refused trial per kind of attacker and reason."""
        refused = [cell.refused for cell in self.cells if cell.refused is not None]
        return tuple({record.message: record for record in refused}.values())

    @property
    def failed(self) -> tuple[TrialRecord, ...]:
        """All trials that broke."""
        return tuple(record for cell in self.cells for record in cell.failed)


@dataclass(frozen=True)
class Matrix:
    """All squares of a scenario.

    Attributes:
        scenario: its name.
        attacks: the columns, in order of first appearance.
        rows: the defences.
    """

    scenario: str
    attacks: tuple[str, ...]
    rows: tuple[Row, ...]

    def square(self, row: Row, attack: str) -> Square:
        """Return the square of a row and a column."""
        cells = {cell.aware: cell for cell in row.cells if cell.attack == attack}
        return Square(self.scenario, row.defence, attack, cells.get(False), cells.get(True))

    @property
    def notes(self) -> tuple[tuple[str, str], ...]:
        """What the attacks want said, as (attack, note), each once."""
        records = (record for row in self.rows for cell in row.cells for record in cell.records)
        return tuple(dict.fromkeys((record.attack, note) for record in records for note in record.notes))

    @property
    def squares(self) -> tuple[Square, ...]:
        """All squares that hold a cell, row by row."""
        every = (self.square(row, attack) for row in self.rows for attack in self.attacks)
        return tuple(square for square in every if square.cells)


def matrices(verdict: Verdict) -> tuple[Matrix, ...]:
    """Return one matrix per scenario, in order of first appearance."""
    grouped: dict[str, list[Row]] = {}
    for row in verdict.rows:
        grouped.setdefault(row.scenario, []).append(row)
    return tuple(
        Matrix(name, tuple(dict.fromkeys(cell.attack for row in rows for cell in row.cells)), tuple(rows))
        for name, rows in grouped.items()
    )


def worst_cell(cells: Iterable[Cell]) -> Cell | None:
    """Return the cell with the worst news, and of the highest PSNR within it."""
    return max((cell for cell in cells if cell.psnr is not None), key=lambda cell: cell.severity, default=None)
